/* scales_folder.c - see scales_folder.h. */
#include "scales_folder.h"

#include "quant_folder.h"

#include <stdio.h>
#include <string.h>

typedef struct both {
    qf_spec group, channel;
} both;

static const qf_spec *choose(void *ctx, const char *name) {
    const both *b = ctx;
    if (!strstr(name, "mlp.experts")) return NULL;
    return b->group.scheme.group && !strstr(name, "down_proj") ? &b->group : &b->channel;
}

void scales_folder(lg_fixture *f, uint32_t group, lg_dtype scale) {
    qf_set quant = {0}, plain = {0};
    char text[1024], args[64] = "\"strategy\":\"channel\"";
    both b = {
        .channel = {
            .method = LG_QUANT_CT,
            .scheme = {.kind = LG_SCHEME_FP8, .per = LG_PER_CHANNEL, .bits = 8, .sym = true},
            .scale_type = scale}};
    const char *down = args;
    b.group = b.channel;
    if (group == SCALES_BLOCKS) {
        b.channel.scheme.per = LG_PER_BLOCK;
        snprintf(args, sizeof args, "\"strategy\":\"block\",\"block_structure\":[128,128]");
    } else if (group) {
        down = "\"strategy\":\"channel\"";
        b.group.scheme.per = LG_PER_GROUP;
        b.group.scheme.group = group;
        snprintf(args, sizeof args, "\"strategy\":\"group\",\"group_size\":%u", group);
    }
    snprintf(text, sizeof text,
             "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
             "\"format\":\"float-quantized\",\"config_groups\":{"
             "\"a\":{\"targets\":[\"re:.*experts.*down_proj\"],\"weights\":{\"num_bits\":8,"
             "\"type\":\"float\",\"symmetric\":true,%s}},"
             "\"b\":{\"targets\":[\"re:.*experts\"],\"weights\":{\"num_bits\":8,"
             "\"type\":\"float\",\"symmetric\":true,%s}}},\"ignore\":[\"lm_head\"]},",
             down, args);
    qf_make(SCALES_SOURCE, choose, &b, &quant, &plain);
    lg_fixture_init(f, SCALES_SOURCE);
    lg_fixture_replace(f, "config.json", "{", text);
    qf_write(&quant, f);
    qf_fini(&quant);
    qf_fini(&plain);
}
