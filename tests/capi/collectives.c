/* Every collective, with sums that were computed by hand: in place and not, waiting and in the background. One rank of a job. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <sched.h>
#include <sys/mman.h>

static herringbone_communicator group;
static uint32_t rank, size;

/* Element `at` of a rank's input. All sums of these are exact in 32 bits. */
static float given(uint32_t from, size_t at) { return (float)(at % 17 + 1 + 100 * from); }

/* The sum of element `at` over all ranks: size * (at % 17 + 1) + 100 * (0 + 1 + ... + size - 1). */
static float sum(size_t at) { return (float)(size * (at % 17 + 1) + 50 * size * (size - 1)); }

/* `count` elements of this rank's input, at an address that no element is aligned to. */
static char *inputs(size_t count) {
    char *memory = malloc(count * sizeof(float) + 1);
    CHECK(memory != NULL);
    for (size_t at = 0; at < count; at++) {
        float value = given(rank, at);
        memcpy(memory + 1 + at * sizeof value, &value, sizeof value);
    }
    return memory;
}

static float element(const char *memory, size_t at) {
    float value;
    memcpy(&value, memory + 1 + at * sizeof value, sizeof value);
    return value;
}

/* Waits for a work, or tests it until it is over. */
static void end(herringbone_work work, int waits) {
    int is_over = 0;
    if (waits) {
        OK(herringbone_wait(work));
    }
    while (!waits && !is_over) {
        OK(herringbone_test(work, &is_over));
        sched_yield();
    }
    FAILS(HERRINGBONE_ERROR_HANDLE, "is over", herringbone_wait(work));
}

static void all_reduce(size_t count) {
    herringbone_work work;
    char *input = inputs(count), *output = inputs(count);
    OK(herringbone_all_reduce(group, input + 1, output + 1, count, HERRINGBONE_F32, HERRINGBONE_SUM));
    for (size_t at = 0; at < count; at++) {
        CHECK(element(output, at) == sum(at) && element(input, at) == given(rank, at));
    }
    OK(herringbone_all_reduce_async(group, input + 1, input + 1, count, HERRINGBONE_F32, HERRINGBONE_AVERAGE, &work));
    end(work, 1);
    for (size_t at = 0; at < count; at++) {
        CHECK(element(input, at) == sum(at) / (float)size);
    }
    free(input);
    free(output);
}

static void reduce(size_t count, uint32_t root) {
    herringbone_work work;
    char *input = inputs(count), *output = inputs(count);
    OK(herringbone_reduce(group, input + 1, output + 1, count, HERRINGBONE_F32, HERRINGBONE_SUM, root));
    for (size_t at = 0; at < count; at++) {
        CHECK(element(output, at) == (rank == root ? sum(at) : given(rank, at)));
    }
    /* Ranks that are not the root need no output, and their input is only read: a page that cannot be written. */
    size_t bytes = count * sizeof(float) + 1;
    char *fixed = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fixed != MAP_FAILED);
    memcpy(fixed, input, bytes);
    CHECK(mprotect(fixed, bytes, PROT_READ) == 0);
    void *result = rank == root ? output + 1 : NULL;
    OK(herringbone_reduce_async(group, fixed + 1, result, count, HERRINGBONE_F32, HERRINGBONE_MAX, root, &work));
    end(work, 0);
    for (size_t at = 0; rank == root && at < count; at++) {
        CHECK(element(output, at) == given(size - 1, at));
    }
    munmap(fixed, bytes);
    free(input);
    free(output);
}

static void broadcast(size_t count, uint32_t root) {
    herringbone_work work;
    char *buffer = inputs(count);
    OK(herringbone_broadcast(group, buffer + 1, count, HERRINGBONE_F32, root));
    for (size_t at = 0; at < count; at++) {
        CHECK(element(buffer, at) == given(root, at));
    }
    OK(herringbone_broadcast_async(group, buffer + 1, count, HERRINGBONE_F32, root, &work));
    end(work, 1);
    free(buffer);
}

/* With `count` elements per rank. */
static void scattered(size_t count) {
    herringbone_work work;
    char *input = inputs(count * size), *output = inputs(count);
    OK(herringbone_reduce_scatter(group, input + 1, output + 1, count, HERRINGBONE_F32, HERRINGBONE_SUM));
    for (size_t at = 0; at < count; at++) {
        CHECK(element(output, at) == sum(rank * count + at));
    }
    /* Into this rank's part of the input. */
    void *own = input + 1 + rank * count * sizeof(float);
    OK(herringbone_reduce_scatter_async(group, input + 1, own, count, HERRINGBONE_F32, HERRINGBONE_SUM, &work));
    end(work, 0);
    for (size_t at = 0; at < count; at++) {
        CHECK(element(input, rank * count + at) == sum(rank * count + at));
    }
    free(input);
    free(output);
}

static void gathered(size_t count) {
    herringbone_work work;
    char *input = inputs(count), *output = inputs(count * size);
    OK(herringbone_all_gather(group, input + 1, output + 1, count, HERRINGBONE_F32));
    for (size_t at = 0; at < count * size; at++) {
        CHECK(element(output, at) == given((uint32_t)(at / count), at % count));
    }
    memset(output + 1, 0, count * size * sizeof(float));
    OK(herringbone_all_gather_async(group, input + 1, output + 1, count, HERRINGBONE_F32, &work));
    end(work, 1);
    for (size_t at = 0; at < count * size; at++) {
        CHECK(element(output, at) == given((uint32_t)(at / count), at % count));
    }
    free(input);
    free(output);
}

static void subgroup(void) {
    uint32_t ranks[] = {0, 1}, own, others;
    herringbone_communicator pair;
    if (size < 3 || rank > 1) {
        return;
    }
    OK(herringbone_subgroup(group, ranks, 2, &pair));
    OK(herringbone_rank(pair, &own));
    OK(herringbone_size(pair, &others));
    int64_t value = rank + 5;
    OK(herringbone_all_reduce(pair, &value, &value, 1, HERRINGBONE_I64, HERRINGBONE_PRODUCT));
    CHECK(own == rank && others == 2 && value == 30);
    OK(herringbone_finalize(pair));
}

int main(void) {
    size_t counts[] = {0, 1, 7, 1000, 300000};
    herringbone_work works[20];
    int32_t values[20];
    CHECK(herringbone_version() == HERRINGBONE_VERSION && herringbone_last_error()[0] == '\0');
    OK(herringbone_init(&group));
    OK(herringbone_rank(group, &rank));
    OK(herringbone_size(group, &size));
    OK(herringbone_set_timeout(group, 20));
    for (size_t at = 0; at < sizeof counts / sizeof *counts; at++) {
        all_reduce(counts[at]);
        reduce(counts[at], size - 1);
        broadcast(counts[at], size / 2);
        scattered(counts[at]);
        gathered(counts[at]);
    }
    OK(herringbone_barrier(group));
    OK(herringbone_barrier_async(group, &works[0]));
    end(works[0], 0);
    /* Several at once, which are waited for in another order. */
    for (int at = 0; at < 20; at++) {
        values[at] = at + (int32_t)rank;
        OK(herringbone_all_reduce_async(group, &values[at], &values[at], 1, HERRINGBONE_I32, HERRINGBONE_SUM, &works[at]));
    }
    for (int at = 19; at >= 0; at--) {
        OK(herringbone_wait(works[at]));
        CHECK(values[at] == (int32_t)(size * (uint32_t)at + size * (size - 1) / 2));
    }
    subgroup();
    OK(herringbone_finalize(group));
    return 0;
}
