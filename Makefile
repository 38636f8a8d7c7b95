# Makefile - the usual words in front of meson and ninja.
#
#   make            release build in build/
#   make run        build, then serve the bundled model; MODEL=/path HOST=... PORT=... to change what and where
#   make check      every quick test, and the unit tests again under ASan and UBSan
#   make check-pjrt the tests on XLA's plugins, which it fetches from PyPI once (CPU 63 MB, libtpu 221 MB)
#   make check-long what takes longer: both compilers, fuzzing, the long tests
#   make bench      speed of this build beside a peer, which it builds once; MODEL=file.gguf for another than the synthetic model
#   make lint       the rules of the tree
#   make install    into PREFIX (/usr/local), below DESTDIR when that is set
#   make clean
BUILD  ?= build
MODEL  ?= models/tiny-qwen35moe
HOST   ?= 127.0.0.1
PORT   ?= 8080
PREFIX ?= /usr/local

.PHONY: all run check check-long check-pjrt bench lint install clean
all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

$(BUILD)/build.ninja:
	@tools/bootstrap.sh build
	meson setup $(BUILD) --prefix $(PREFIX)

run:
	@tools/bootstrap.sh build
	@$(MAKE) --no-print-directory all
	$(BUILD)/cli/lignum serve --model "$(MODEL)" --host "$(HOST)" --port "$(PORT)"

check:
	@tools/bootstrap.sh check
	@tools/check.sh

check-long:
	@tools/bootstrap.sh long
	@tools/check.sh long

check-pjrt:
	@tools/bootstrap.sh check
	@tools/check.sh pjrt

bench: all
	@tools/bootstrap.sh bench
	@tools/bench.py --lignum $(BUILD)/cli/lignum $(if $(filter %.gguf,$(MODEL)),--model "$(MODEL)") $(BENCH)

lint:
	@tools/bootstrap.sh check
	@tools/lint.py

install: $(BUILD)/build.ninja
	meson configure $(BUILD) --prefix $(PREFIX)
	@ninja -C $(BUILD)
	meson install -C $(BUILD) --no-rebuild

clean:
	rm -rf $(BUILD) build-asan build-clang build-fuzz
