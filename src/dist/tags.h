/* tags.h - what a message between ranks is about: one list, so that no two meanings share a tag.
 *
 * Messages of one tag between two ranks keep their order (comm.h); of two tags they do not wait for each other.  A trail
 * (lg_comm_at) names exchanges by these too, also those that send nothing themselves. */
#ifndef LG_DIST_TAGS_H
#define LG_DIST_TAGS_H

enum {
    /* the leader and its members: backend/group */
    LG_TAG_ORDER = 1,
    LG_TAG_REPLY,
    LG_TAG_CALL, /* both ways */

    /* ranks at start and end, what was measured: engine/ranks.c */
    LG_TAG_REPORT,
    LG_TAG_DATA,
    LG_TAG_LOAD,
    LG_TAG_TRACE,

    /* start-up: links.c, window.c */
    LG_TAG_PING,
    LG_TAG_WINDOW,

    /* a layer's exchange: exchange.c, alltoall.c */
    LG_TAG_ROWS,
    LG_TAG_KNOWN, /* in the trail only, as the next */
    LG_TAG_SUMS,
    LG_TAG_BACK,
    LG_TAG_TO,
    LG_TAG_HOME_ROWS,

    /* a divided sequence: spread.c, slice.c */
    LG_TAG_SWAP,
    LG_TAG_GATHER,
    LG_TAG_DEAL,
    LG_TAG_HOME_HEADS,
    LG_TAG_COPY,
    LG_TAG_COLLECT,
    LG_TAG_OWNER,

    /* a reduce-scatter, and the tags after it for its chunks and steps: reduce.c */
    LG_TAG_REDUCE = 64
};

#endif
