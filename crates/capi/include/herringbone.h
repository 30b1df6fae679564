/* Herringbone: all-reduce for data-parallel training, with the same bits every time. The interface for C and C++.
 *
 * A program is started once per rank, joins the job, makes the same calls as the other ranks, and leaves:
 *
 *     herringbone_communicator group;
 *     float gradient[1000] = {0};
 *     if (herringbone_init(&group) != HERRINGBONE_OK ||
 *         herringbone_all_reduce(group, gradient, gradient, 1000, HERRINGBONE_F32, HERRINGBONE_AVERAGE) != HERRINGBONE_OK ||
 *         herringbone_finalize(group) != HERRINGBONE_OK) {
 *         fprintf(stderr, "%s\n", herringbone_last_error());
 *         return 1;
 *     }
 *
 * Errors. Each function that can fail returns a code: HERRINGBONE_OK (0), or one of enum herringbone_error. The text of the
 * failure and, if ranks are lost, their numbers are kept per thread: see herringbone_last_error and herringbone_lost_ranks. A
 * function that fails leaves its results unset, except herringbone_test. No function ends the process, and none throws.
 *
 * A call that fails with HERRINGBONE_ERROR_ARGUMENT, HANDLE, UNSUPPORTED or BUFFER_SIZE was not made: the other ranks, if they
 * have made it, wait for this one's until their timeout. After all other failures of a collective the contents of its output are
 * undefined; enum herringbone_error tells whether the communicator can be used again.
 *
 * Handles. Communicators and works are numbers, which are given once per process and never again. Using one after its end, or any
 * other number, gives HERRINGBONE_ERROR_HANDLE. 0 is never a handle.
 *
 * Pointers. Buffers need no alignment; all other pointers are aligned for their types. A pointer to a buffer can be null if no
 * bytes are needed, as with a count of 0. Other pointers must not be null, unless the comment of their function permits it: a null
 * pointer gives HERRINGBONE_ERROR_ARGUMENT. The library cannot check other addresses: wrong ones are undefined behaviour, as is a
 * count that is larger than its buffer.
 *
 * Ownership. The library keeps no pointer of the caller beyond a call. The only exception are buffers of functions whose names
 * end in _async: they belong to the library until the work's handle is over. Until then the program neither frees nor writes them,
 * and does not read outputs. The library frees nothing of the caller, and the caller nothing of the library.
 *
 * Threads. All functions can be called from all threads at any time. Calls of one communicator are matched between ranks by their
 * order. So threads that use the same communicator have to agree on an order that is the same on all ranks. Or each thread uses a
 * communicator of its own, from herringbone_subgroup.
 *
 * Processes. A forked child cannot use the handles of its parent: HERRINGBONE_ERROR_FORKED. It can join a job of its own.
 * A process should call herringbone_finalize before it ends, because the other ranks take it for lost otherwise.
 *
 * Units. Times are in seconds. Counts are in elements, not in bytes.
 *
 * RABIT. Programs that continue after the loss of a process use rabit/c_api.h or herringbone/rabit.h of the same library. Between
 * RabitInit and RabitFinalize that interface has a communicator of its own, which is no handle. No function of this header can
 * call anything on it: neither a reduce-scatter, whose results no rank could keep for a lost one, nor anything in the background.
 * A process can use both interfaces at two addresses. herringbone_init after RabitInit fails, because the address is taken, so give
 * herringbone_init_with another port. Only RABIT's calls survive a lost rank.
 *
 * Results. The sum of an element depends only on the inputs, the ranks and the number of ranks. It does not depend on the
 * algorithm, the transport, sizes or timing. Integers wrap. 16-bit floats are folded as 32-bit floats and rounded once.
 */
#ifndef HERRINGBONE_H
#define HERRINGBONE_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header. A program that was compiled with it runs with every library of the same SONAME that is not older. */
#define HERRINGBONE_VERSION_MAJOR 0
#define HERRINGBONE_VERSION_MINOR 1
#define HERRINGBONE_VERSION_PATCH 0
#define HERRINGBONE_VERSION \
    (HERRINGBONE_VERSION_MAJOR * 1000000 + HERRINGBONE_VERSION_MINOR * 1000 + HERRINGBONE_VERSION_PATCH)

#if defined(__GNUC__)
#define HERRINGBONE_API __attribute__((visibility("default")))
#else
#define HERRINGBONE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A process's membership in a group of ranks: from herringbone_init, herringbone_init_with or herringbone_subgroup until
 * herringbone_finalize. */
typedef uint64_t herringbone_communicator;

/* An operation in the background: from a function that ends in _async until herringbone_wait returns, or herringbone_test
 * reports its end. Each work has to be waited for, or tested until it is over: otherwise its handle is never freed. */
typedef uint64_t herringbone_work;

/* What functions return. A number never changes; later versions may add others. */
enum herringbone_error {
    /* The call has done what it should. */
    HERRINGBONE_OK = 0,
    /* Ranks died, left or aborted the group while an operation needed them: herringbone_lost_ranks. The communicator is finished. */
    HERRINGBONE_ERROR_PEER_LOST = 1,
    /* A reducer would not take part in an operation, or not in time. Other operations can be called. */
    HERRINGBONE_ERROR_REDUCER_LOST = 2,
    /* Reserved for tables, which this interface does not have. */
    HERRINGBONE_ERROR_TABLE = 3,
    /* Reserved for tables. */
    HERRINGBONE_ERROR_TABLE_SERVER_LOST = 4,
    /* The ranks called different operations. All ranks get this error; the communicator can be used again. */
    HERRINGBONE_ERROR_MISMATCH = 5,
    /* The timeout passed. The communicator can be used again if the ranks that were missing come back. */
    HERRINGBONE_ERROR_TIMEOUT = 6,
    /* A rank lacks memory for its part of an operation. The communicator can be used again. */
    HERRINGBONE_ERROR_MEMORY = 7,
    /* The other side has another token, or a token is missing. */
    HERRINGBONE_ERROR_AUTH = 8,
    /* A setting of the environment is missing or cannot be used, or a rank, an address or a list of ranks of this call cannot. */
    HERRINGBONE_ERROR_CONFIG = 9,
    /* The ranks did not find each other. */
    HERRINGBONE_ERROR_RENDEZVOUS = 10,
    /* A rank broke the protocol: the ranks run different versions, or there is a bug. */
    HERRINGBONE_ERROR_PROTOCOL = 11,
    /* Data changed on its way. The communicator can be used again. */
    HERRINGBONE_ERROR_CORRUPT = 12,
    /* Two ranks that both live are cut from each other. The communicator can be used again. */
    HERRINGBONE_ERROR_LINK_LOST = 13,
    /* The handle belongs to the process from which this one was forked. */
    HERRINGBONE_ERROR_FORKED = 14,
    /* The communicator was aborted here, or finalized while the operation ran. */
    HERRINGBONE_ERROR_CLOSED = 15,
    /* The operation cannot be served: a root that is no rank, or bits of floats. */
    HERRINGBONE_ERROR_UNSUPPORTED = 16,
    /* A buffer has the wrong size. */
    HERRINGBONE_ERROR_BUFFER_SIZE = 17,
    /* The operating system refused something. */
    HERRINGBONE_ERROR_IO = 18,
    /* A program of RABIT's interface cannot continue where it was. */
    HERRINGBONE_ERROR_REPLAY = 19,
    /* An argument cannot be used: a null pointer, a number that is of no enum, a count that is too large, a timeout that is no
     * time, or options without the address that they need. */
    HERRINGBONE_ERROR_ARGUMENT = 100,
    /* The handle does not exist, or is over. */
    HERRINGBONE_ERROR_HANDLE = 101,
    /* The library has a bug. The communicator might be unusable. */
    HERRINGBONE_ERROR_PANIC = 102
};

/* The types of elements. */
enum herringbone_dtype {
    /* IEEE 754 binary32: float. */
    HERRINGBONE_F32 = 0,
    /* IEEE 754 binary64: double. */
    HERRINGBONE_F64 = 1,
    /* IEEE 754 binary16. */
    HERRINGBONE_F16 = 2,
    /* bfloat16: the upper half of a binary32. */
    HERRINGBONE_BF16 = 3,
    HERRINGBONE_I8 = 4,
    HERRINGBONE_U8 = 5,
    HERRINGBONE_I32 = 6,
    HERRINGBONE_I64 = 7,
    HERRINGBONE_I16 = 8,
    HERRINGBONE_U16 = 9,
    HERRINGBONE_U32 = 10,
    HERRINGBONE_U64 = 11
};

/* How elements are folded. */
enum herringbone_op {
    HERRINGBONE_SUM = 0,
    /* The sum divided by the number of ranks; integers are rounded toward zero. */
    HERRINGBONE_AVERAGE = 1,
    HERRINGBONE_PRODUCT = 2,
    /* Minimum and maximum. For floats they are IEEE 754-2019's: a NaN wins. */
    HERRINGBONE_MIN = 3,
    HERRINGBONE_MAX = 4,
    /* Bitwise operations, for integers only. */
    HERRINGBONE_BIT_AND = 5,
    HERRINGBONE_BIT_OR = 6,
    HERRINGBONE_BIT_XOR = 7
};

/* The options of a process that joins a job. Set it to HERRINGBONE_OPTIONS_INIT first. Later versions add members at the end;
 * `size` tells the library which of them the program's compiler knew. All other settings come from the environment. */
typedef struct herringbone_options {
    /* sizeof(herringbone_options). */
    size_t size;
    /* This process's rank: 0 to world_size - 1. */
    uint32_t rank;
    /* How many ranks the job has: 1 or more. */
    uint32_t world_size;
    /* Where rank 0 listens, as "host:port", the same on all ranks. It can be null if world_size is 1. */
    const char *address;
    /* The job's token, the same on all ranks, of 16 characters or more if ranks are on several hosts. Null: the
     * environment's token, or none. */
    const char *token;
    /* The timeout of forming the group, and of an operation. 0: the environment's timeout, by default 1800. */
    double timeout_seconds;
} herringbone_options;

#define HERRINGBONE_OPTIONS_INIT {sizeof(herringbone_options), 0, 1, NULL, NULL, 0.0}

/* --- Versions and errors ------------------------------------------------------------------------------------------------- */

/* The version of the library that runs, in the form of HERRINGBONE_VERSION. */
HERRINGBONE_API uint32_t herringbone_version(void);

/* The name of a code of enum herringbone_error, such as "HERRINGBONE_ERROR_TIMEOUT"; null for any other number. */
HERRINGBONE_API const char *herringbone_error_name(int code);

/* What went wrong in the last call of this thread that failed, and what to do, in UTF-8; "" if none has failed. The text is
 * the library's, and is valid until the next call of this thread that fails, or until the thread ends. */
HERRINGBONE_API const char *herringbone_last_error(void);

/* The lost ranks of the last call of this thread that failed, if its code was HERRINGBONE_ERROR_PEER_LOST. Writes up to `capacity`
 * of them to `ranks`, which can be null if `capacity` is 0, and their number to `count`: 0 after any other failure. The ranks are
 * numbers in the job, even after a call of a subgroup's communicator. */
HERRINGBONE_API int herringbone_lost_ranks(uint32_t *ranks, size_t capacity, size_t *count);

/* --- Groups of ranks ------------------------------------------------------------------------------------------------------ */

/* Joins the job that the environment describes: RANK, WORLD_SIZE and HERRINGBONE_STORE, or the variables of a launcher. Returns
 * when all ranks have joined. Without any variable it is a job of one rank. */
HERRINGBONE_API int herringbone_init(herringbone_communicator *communicator);

/* Joins a job with these options. The texts in them are needed only during the call. */
HERRINGBONE_API int herringbone_init_with(const herringbone_options *options, herringbone_communicator *communicator);

/* Ends a communicator in order. On the whole job's communicator this waits until the operations of all its groups have ended, says
 * goodbye to the other ranks, and ends the library's threads. The handle is over even if it fails. Works remain: wait for them.
 * An error here is one that no call has returned, such as a rank that has left without a call that this one has made. */
HERRINGBONE_API int herringbone_finalize(herringbone_communicator communicator);

/* Fails all operations of this group that run or are called later. Here calls fail with HERRINGBONE_ERROR_CLOSED, on the other
 * ranks with HERRINGBONE_ERROR_PEER_LOST, which names this rank. Waits for no other rank. The handle lives until herringbone_finalize. */
HERRINGBONE_API int herringbone_abort(herringbone_communicator communicator);

/* This process's rank in the group, from 0. */
HERRINGBONE_API int herringbone_rank(herringbone_communicator communicator, uint32_t *rank);

/* How many ranks the group has. */
HERRINGBONE_API int herringbone_size(herringbone_communicator communicator, uint32_t *size);

/* Sets the timeout of operations that are called from now on, in seconds, at least 0. */
HERRINGBONE_API int herringbone_set_timeout(herringbone_communicator communicator, double seconds);

/* Makes a communicator of `count` of the group's ranks, which ascend. Only these ranks call it, all with the same list. It does
 * not wait for them. Finalize it before the communicator from which it was made. */
HERRINGBONE_API int herringbone_subgroup(
    herringbone_communicator communicator, const uint32_t *ranks, size_t count, herringbone_communicator *subgroup);

/* --- Collectives ---------------------------------------------------------------------------------------------------------- */

/* All ranks of a group call the same collectives in the same order, each with the same count, dtype, op and root. `dtype` is one of
 * enum herringbone_dtype, `op` one of enum herringbone_op. A function without _async returns when this rank's part is done.
 *
 * The same address as input and output makes a call in place. If buffers overlap in any other way, the call takes a copy of
 * the input first. */

/* Folds the `count` elements of every rank's input into every rank's output. */
HERRINGBONE_API int herringbone_all_reduce(
    herringbone_communicator communicator, const void *input, void *output, size_t count, int dtype, int op);

/* Folds the `count` elements of every rank's input into the output of rank `root`. The outputs of other ranks are not touched, and
 * can be null. */
HERRINGBONE_API int herringbone_reduce(
    herringbone_communicator communicator, const void *input, void *output, size_t count, int dtype, int op, uint32_t root);

/* Copies the `count` elements of rank `root`'s buffer to the buffers of all other ranks. */
HERRINGBONE_API int herringbone_broadcast(
    herringbone_communicator communicator, void *buffer, size_t count, int dtype, uint32_t root);

/* Folds all ranks' inputs, of `count` elements for each rank, and puts the part of rank r into its output. That part is elements
 * r * count to (r + 1) * count - 1. */
HERRINGBONE_API int herringbone_reduce_scatter(
    herringbone_communicator communicator, const void *input, void *output, size_t count, int dtype, int op);

/* Puts the `count` elements of all ranks' inputs, in the order of ranks, into every rank's output: `count` elements for each rank. */
HERRINGBONE_API int herringbone_all_gather(
    herringbone_communicator communicator, const void *input, void *output, size_t count, int dtype);

/* Returns when all ranks have called it. */
HERRINGBONE_API int herringbone_barrier(herringbone_communicator communicator);

/* --- Collectives in the background ---------------------------------------------------------------------------------------- */

/* As the functions above. They return at once; the operation runs on, on a thread of the library or on one that waits. If one of them
 * fails, no operation runs and there is no work. */

HERRINGBONE_API int herringbone_all_reduce_async(
    herringbone_communicator communicator, const void *input, void *output, size_t count, int dtype, int op,
    herringbone_work *work);

HERRINGBONE_API int herringbone_reduce_async(
    herringbone_communicator communicator, const void *input, void *output, size_t count, int dtype, int op, uint32_t root,
    herringbone_work *work);

HERRINGBONE_API int herringbone_broadcast_async(
    herringbone_communicator communicator, void *buffer, size_t count, int dtype, uint32_t root, herringbone_work *work);

HERRINGBONE_API int herringbone_reduce_scatter_async(
    herringbone_communicator communicator, const void *input, void *output, size_t count, int dtype, int op,
    herringbone_work *work);

HERRINGBONE_API int herringbone_all_gather_async(
    herringbone_communicator communicator, const void *input, void *output, size_t count, int dtype, herringbone_work *work);

HERRINGBONE_API int herringbone_barrier_async(herringbone_communicator communicator, herringbone_work *work);

/* Waits until the operation is over, and returns its result. Then the buffers are the program's again, and the handle is over.
 * Threads that wait for the same work at once all get its result. */
HERRINGBONE_API int herringbone_wait(herringbone_work work);

/* Sets `is_over` to 0 and returns HERRINGBONE_OK while the operation runs; waits for nothing. Once it is over, this sets `is_over` to 1
 * and returns the operation's result; the buffers are the program's again, and the handle is over. `is_over` is 1 after any failure,
 * too, so that a loop ends. */
HERRINGBONE_API int herringbone_test(herringbone_work work, int *is_over);

#ifdef __cplusplus
}
#endif

#endif
