/* scales_folder.h - the bundled model with its routed experts in FP8 whose scales are of channels or of groups of inputs, as
 * compressed-tensors writes them. */
#ifndef LG_TESTS_SCALES_FOLDER_H
#define LG_TESTS_SCALES_FOLDER_H

#include "fixture.h"
#include "kern/kern.h"

#define SCALES_SOURCE "models/tiny-qwen35moe"

/* group: inputs that share a scale of gate and up, which have 256; 0: all, as down's 64 always do; SCALES_BLOCKS: scales of blocks of
 * 128 x 128 in all three.  scale: type of the scales. */
#define SCALES_BLOCKS 1
void scales_folder(lg_fixture *f, uint32_t group, lg_dtype scale);

#endif
