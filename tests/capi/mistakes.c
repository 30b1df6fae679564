/* Whatever a program does wrong gives a code and a text. One rank of a job; some mistakes need two. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static herringbone_communicator group;
static uint32_t rank, size;

#define ARGUMENT(words, call) FAILS(HERRINGBONE_ERROR_ARGUMENT, words, call)
#define HANDLE(words, call) FAILS(HERRINGBONE_ERROR_HANDLE, words, call)
#define SUM_OF(count, dtype, op) herringbone_all_reduce(group, values, values, count, dtype, op)

static void arguments(void) {
    float values[2] = {1, 2};
    herringbone_work work;
    ARGUMENT("input is null", herringbone_all_reduce(group, NULL, values, 1, HERRINGBONE_F32, HERRINGBONE_SUM));
    ARGUMENT("output is null", herringbone_all_reduce(group, values, NULL, 1, HERRINGBONE_F32, HERRINGBONE_SUM));
    ARGUMENT("is null", herringbone_reduce(group, values, NULL, 1, HERRINGBONE_F32, HERRINGBONE_SUM, rank));
    ARGUMENT("is null", herringbone_broadcast(group, NULL, 1, HERRINGBONE_F32, 0));
    ARGUMENT("work is null", herringbone_barrier_async(group, NULL));
    ARGUMENT("rank is null", herringbone_rank(group, NULL));
    ARGUMENT("size is null", herringbone_size(group, NULL));
    ARGUMENT("count is null", herringbone_lost_ranks(NULL, 0, NULL));
    ARGUMENT("ranks is null", herringbone_subgroup(group, NULL, 1, &group));
    ARGUMENT("subgroup is null", herringbone_subgroup(group, &rank, 1, NULL));
    ARGUMENT("communicator is null", herringbone_init(NULL));
    ARGUMENT("is no element type", SUM_OF(2, 12, HERRINGBONE_SUM));
    ARGUMENT("is no element type", SUM_OF(2, -1, HERRINGBONE_SUM));
    ARGUMENT("is no element type", SUM_OF(2, 256, HERRINGBONE_SUM));
    ARGUMENT("is no operation", SUM_OF(2, HERRINGBONE_F32, 8));
    ARGUMENT("is no operation", SUM_OF(2, HERRINGBONE_F32, -1));
    ARGUMENT("no buffer is as long", SUM_OF(SIZE_MAX, HERRINGBONE_F32, HERRINGBONE_SUM));
    ARGUMENT("no buffer is as long", SUM_OF(SIZE_MAX / 8 + 1, HERRINGBONE_F64, HERRINGBONE_SUM));
    ARGUMENT("no buffer is as long", SUM_OF(SIZE_MAX, HERRINGBONE_U8, HERRINGBONE_SUM));
    ARGUMENT("no buffer is as long", herringbone_all_gather(group, values, values, SIZE_MAX / 4 + 2, HERRINGBONE_F32));
    ARGUMENT("no array has", herringbone_subgroup(group, &rank, SIZE_MAX, &group));
    ARGUMENT("seconds: -1", herringbone_set_timeout(group, -1));
    ARGUMENT("seconds: NaN", herringbone_set_timeout(group, (double)NAN));
    ARGUMENT("seconds: inf", herringbone_set_timeout(group, (double)INFINITY));
    FAILS(HERRINGBONE_ERROR_UNSUPPORTED, "bits", SUM_OF(2, HERRINGBONE_F32, HERRINGBONE_BIT_OR));
    FAILS(HERRINGBONE_ERROR_UNSUPPORTED, "root", herringbone_broadcast(group, values, 1, HERRINGBONE_F32, size));
    FAILS(HERRINGBONE_ERROR_CONFIG, "ranks of a group", herringbone_subgroup(group, &size, 1, &group));
    /* A failure in the background gives no work. */
    work = 5;
    ARGUMENT("is null", herringbone_all_gather_async(group, NULL, values, 1, HERRINGBONE_F32, &work));
    CHECK(work == 5);
    /* Nothing is needed where there is nothing. */
    OK(herringbone_all_reduce(group, NULL, NULL, 0, HERRINGBONE_F32, HERRINGBONE_SUM));
    OK(herringbone_all_gather(group, NULL, NULL, 0, HERRINGBONE_F64));
    OK(herringbone_broadcast_async(group, NULL, 0, HERRINGBONE_U8, 0, &work));
    OK(herringbone_wait(work));
}

static void names(void) {
    CHECK(strcmp(herringbone_error_name(HERRINGBONE_OK), "HERRINGBONE_OK") == 0);
    CHECK(strcmp(herringbone_error_name(HERRINGBONE_ERROR_PEER_LOST), "HERRINGBONE_ERROR_PEER_LOST") == 0);
    CHECK(herringbone_error_name(-1) == NULL && herringbone_error_name(99) == NULL);
    /* A text stays where it is while calls succeed. */
    HANDLE("0x7", herringbone_wait(7));
    const char *text = herringbone_last_error();
    OK(herringbone_size(group, &size));
    CHECK(text == herringbone_last_error() && strstr(text, "0x7") != NULL);
}

static void handles(void) {
    herringbone_work work;
    int is_over;
    uint32_t found = 7;
    HANDLE("is no communicator's handle", herringbone_barrier(0));
    HANDLE("is no communicator's handle", herringbone_rank(UINT64_MAX, &found));
    HANDLE("no call of this process", herringbone_rank(group + 1000, &found));
    CHECK(found == 7);
    OK(herringbone_barrier_async(group, &work));
    HANDLE("is no communicator's handle", herringbone_barrier(work));
    HANDLE("is no work's handle", herringbone_wait(group));
    OK(herringbone_wait(work));
    HANDLE("is over", herringbone_wait(work));
    is_over = 0;
    HANDLE("is over", herringbone_test(work, &is_over));
    CHECK(is_over == 1);
    OK(herringbone_barrier_async(group, &work));
    ARGUMENT("is_over is null", herringbone_test(work, NULL));
    OK(herringbone_wait(work));
}

/* Of a later version of the header. */
struct later_options {
    herringbone_options known;
    uint64_t unknown;
};

static void options(void) {
    herringbone_options options = HERRINGBONE_OPTIONS_INIT;
    struct later_options later = {HERRINGBONE_OPTIONS_INIT, 0};
    herringbone_communicator alone;
    ARGUMENT("options is null", herringbone_init_with(NULL, &alone));
    ARGUMENT("communicator is null", herringbone_init_with(&options, NULL));
    options.size = 0;
    ARGUMENT("have the size 0", herringbone_init_with(&options, &alone));
    options.size = SIZE_MAX;
    ARGUMENT("have the size", herringbone_init_with(&options, &alone));
    options.size = sizeof options;
    options.timeout_seconds = -1;
    ARGUMENT("timeout_seconds", herringbone_init_with(&options, &alone));
    options.timeout_seconds = 0.5;
    options.world_size = 2;
    ARGUMENT("address is missing", herringbone_init_with(&options, &alone));
    options.address = "\xff:1";
    ARGUMENT("not text in UTF-8", herringbone_init_with(&options, &alone));
    options.address = "nowhere";
    FAILS(HERRINGBONE_ERROR_CONFIG, "host:port", herringbone_init_with(&options, &alone));
    options.address = "127.0.0.1:1";
    options.rank = 2;
    FAILS(HERRINGBONE_ERROR_CONFIG, "rank 2", herringbone_init_with(&options, &alone));
    options.rank = 1;
    FAILS(HERRINGBONE_ERROR_RENDEZVOUS, "127.0.0.1:1", herringbone_init_with(&options, &alone));
    later.known.size = sizeof later;
    later.unknown = 1;
    ARGUMENT("does not know", herringbone_init_with(&later.known, &alone));
    later.unknown = 0;
    OK(herringbone_init_with(&later.known, &alone));
    OK(herringbone_size(alone, &size));
    CHECK(size == 1);
    OK(herringbone_finalize(alone));
    HANDLE("is finalized already", herringbone_finalize(alone));
    OK(herringbone_size(group, &size));
}

/* A child knows its parent's handles as such, and can join a job of its own. */
static void forked(void) {
    herringbone_work work;
    int status;
    OK(herringbone_barrier_async(group, &work));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        herringbone_options options = HERRINGBONE_OPTIONS_INIT;
        herringbone_communicator own;
        float value = 3;
        FAILS(HERRINGBONE_ERROR_FORKED, "forked", herringbone_barrier(group));
        FAILS(HERRINGBONE_ERROR_FORKED, "forked", herringbone_wait(work));
        FAILS(HERRINGBONE_ERROR_FORKED, "forked", herringbone_finalize(group));
        OK(herringbone_init_with(&options, &own));
        OK(herringbone_all_reduce(own, &value, &value, 1, HERRINGBONE_F32, HERRINGBONE_SUM));
        CHECK(value == 3 && own != group);
        OK(herringbone_finalize(own));
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(herringbone_wait(work));
}

/* What ranks do wrong together. The group can be used again after each. */
static void disagreements(void) {
    float values[2] = {1, 2};
    FAILS(HERRINGBONE_ERROR_MISMATCH, "disagree", SUM_OF(1 + rank, HERRINGBONE_F32, HERRINGBONE_SUM));
    OK(herringbone_barrier(group));
    /* Rank 1 makes its call when rank 0's has failed, which another group tells it. */
    uint32_t both[] = {0, 1};
    herringbone_communicator other;
    OK(herringbone_subgroup(group, both, 2, &other));
    OK(herringbone_set_timeout(group, 0.1));
    if (rank == 0) {
        FAILS(HERRINGBONE_ERROR_TIMEOUT, "rank 1", SUM_OF(1, HERRINGBONE_F32, HERRINGBONE_SUM));
    }
    OK(herringbone_barrier(other));
    if (rank == 1) {
        FAILS(HERRINGBONE_ERROR_TIMEOUT, "passed on rank 0", SUM_OF(1, HERRINGBONE_F32, HERRINGBONE_SUM));
    }
    OK(herringbone_finalize(other));
    OK(herringbone_set_timeout(group, 20));
    OK(herringbone_barrier(group));
}

/* One rank aborts a group of both. */
static void aborted(void) {
    uint32_t both[] = {0, 1}, lost = 7;
    herringbone_communicator doomed;
    herringbone_work work = 0;
    size_t count;
    OK(herringbone_subgroup(group, both, 2, &doomed));
    OK(herringbone_barrier(doomed));
    if (rank == 1) {
        OK(herringbone_abort(doomed));
        FAILS(HERRINGBONE_ERROR_CLOSED, "closed", herringbone_barrier(doomed));
    } else {
        /* It may have heard of that before it calls. */
        int code = herringbone_barrier_async(doomed, &work);
        CHECK((code == HERRINGBONE_OK ? herringbone_wait(work) : code) == HERRINGBONE_ERROR_PEER_LOST);
        OK(herringbone_lost_ranks(&lost, 1, &count));
        CHECK(count == 1 && lost == 1);
    }
    OK(herringbone_finalize(doomed));
    OK(herringbone_barrier(group));
}

int main(void) {
    OK(herringbone_init(&group));
    OK(herringbone_rank(group, &rank));
    OK(herringbone_size(group, &size));
    OK(herringbone_set_timeout(group, 20));
    arguments();
    names();
    handles();
    options();
    forked();
    if (size == 2) {
        disagreements();
        aborted();
    }
    /* What is left of a job that this rank has left: a part of it is closed, and a work has its result. */
    uint32_t all[] = {0, 1};
    herringbone_communicator part;
    herringbone_work work;
    OK(herringbone_subgroup(group, all, size, &part));
    OK(herringbone_barrier_async(group, &work));
    OK(herringbone_finalize(group));
    OK(herringbone_wait(work));
    FAILS(HERRINGBONE_ERROR_CLOSED, "closed", herringbone_barrier(part));
    OK(herringbone_finalize(part));
    HANDLE("is finalized already", herringbone_barrier(group));
    HANDLE("is finalized already", herringbone_finalize(group));
    HANDLE("is finalized already", herringbone_set_timeout(group, 1));
    return 0;
}
