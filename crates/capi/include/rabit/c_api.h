/* RABIT's interface for C, and for languages that call C: programs that lose a process and continue where they were.
 *
 * The names, numbers and types are RABIT's (dmlc/rabit, include/rabit/c_api.h), so that its Python module and programs that were
 * written for it run over libherringbone.so. `herringbone launch --max-attempts 20 -n 4 ./program` starts a program, and starts
 * again each process that ends with a failure:
 *
 *     RabitInit(argc, argv);
 *     if (RabitLoadCheckPoint(&model, &length, NULL, NULL) == 0) { the program begins }
 *     while (RabitVersionNumber() < 100) {
 *         RabitAllreduce(sum, count, rabit_float, rabit_sum, prepare, NULL);
 *         RabitCheckPoint(new_model, length, NULL, 0);
 *     }
 *     RabitFinalize();
 *
 * All ranks make the same calls in the same order, from one thread. A process that is started again repeats the calls that its
 * predecessor made since the checkpoint. If the others have their results, these calls return at once, and prepare is not called.
 *
 * Errors. RABIT ends the process; this library never does. The text of a failure is printed on standard error, and is what
 * herringbone_last_error() of herringbone.h returns. Functions that return bool return false. Functions that return a number return -1.
 * If a function that returns nothing fails, its buffer has no result. All later calls of this interface fail then, too, and
 * RabitFinalize returns false: end the program with a failure, so that it is started again. These are failures: a null pointer
 * where bytes are needed, a number of no enum, a count that no buffer has, and every call before RabitInit or after RabitFinalize.
 *
 * Pointers need no alignment. The library keeps none of them beyond a call.
 *
 * Differences. The library needs no tracker: a launcher's environment says where rank 0 is. RABIT's arguments rabit_global_replica,
 * rabit_local_replica and rabit_timeout_sec are read; others are not. The ring of RabitGetRingPrevRank is the order of ranks. Sums
 * have the same bits every time. The program's own Herringbone communicators are not concerned: this interface has one of its own,
 * which no handle names, so no other call can come between its calls.
 */
#ifndef RABIT_C_API_H_
#define RABIT_C_API_H_

#include <stddef.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#if defined(__GNUC__)
#define RABIT_API __attribute__((visibility("default")))
#else
#define RABIT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Lengths, in bytes. */
typedef unsigned long rbt_ulong;

/* The types of elements: numbers for `enum_dtype`. */
enum rabit_dtype {
    rabit_char = 0,
    rabit_unsigned_char = 1,
    rabit_int = 2,
    rabit_unsigned_int = 3,
    rabit_long = 4,
    rabit_unsigned_long = 5,
    rabit_float = 6,
    rabit_double = 7,
    rabit_long_long = 8,
    rabit_unsigned_long_long = 9
};

/* How elements are folded: numbers for `enum_op`. */
enum rabit_op {
    rabit_max = 0,
    rabit_min = 1,
    rabit_sum = 2,
    /* For integers only. */
    rabit_bitwise_or = 3
};

/* Joins the job that the environment describes, or continues in it if this process takes the place of a lost one. `argv` may be null
 * if `argc` is 0. */
RABIT_API bool RabitInit(int argc, char *argv[]);

/* Waits until all ranks have come to their end, and leaves. After a failure this process has left, too, and can join again. */
RABIT_API bool RabitFinalize(void);

/* The rank before this one; for rank 0, the last one. */
RABIT_API int RabitGetRingPrevRank(void);

/* This process's rank, from 0. */
RABIT_API int RabitGetRank(void);

/* How many ranks there are. */
RABIT_API int RabitGetWorldSize(void);

/* 1 if there are other ranks, or else 0. */
RABIT_API int RabitIsDistributed(void);

/* Prints a line with this process's rank, on standard error, which launchers collect. RABIT's tracker prints it. */
RABIT_API void RabitTrackerPrint(const char *msg);

/* Writes the name of this process's host, with a zero byte at its end, as far as `max_len` bytes go; `out_len` is its length without
 * that byte. */
RABIT_API void RabitGetProcessorName(char *out_name, rbt_ulong *out_len, rbt_ulong max_len);

/* Copies `size` bytes of rank `root`'s memory to all other ranks. */
RABIT_API void RabitBroadcast(void *sendrecv_data, rbt_ulong size, int root);

/* Gathers slices of a buffer that has `total_size` elements on all ranks. This rank gives the `size_node_slice` elements from
 * `beginIndex` on; the rank before it gives `size_prev_slice`. The slices of all ranks make up the buffer. Their lengths may differ. */
RABIT_API void RabitAllgather(void *sendrecvbuf, size_t total_size, size_t beginIndex, size_t size_node_slice,
    size_t size_prev_slice, int enum_dtype);

/* Folds `count` elements over all ranks, in place. If `prepare_fun` is not null, it is called with `prepare_arg` before that, and
 * puts the input into the buffer; it is not called if the others have the result already. It makes no call of this interface that
 * moves data, and throws nothing. */
RABIT_API void RabitAllreduce(void *sendrecvbuf, size_t count, int enum_dtype, int enum_op, void (*prepare_fun)(void *arg),
    void *prepare_arg);

/* Loads the last checkpoint, and returns its version: how many checkpoints there were. 0 means that there is none; the places are
 * not touched then. The places of the local model may be null. A local model that was not given is a null pointer of length 0. The
 * models are the library's, and are valid until the next call of this function or of RabitFinalize. */
RABIT_API int RabitLoadCheckPoint(char **out_global_model, rbt_ulong *out_global_len, char **out_local_model,
    rbt_ulong *out_local_len);

/* Ends a version: a process that starts from now on begins with these models. Returns when all ranks have called it. The global model
 * is the same on all ranks. The local one is this rank's own, and the next ranks keep copies of it; null or a length of 0 means that
 * there is none. All ranks have one, or none. */
RABIT_API void RabitCheckPoint(const char *global_model, rbt_ulong global_len, const char *local_model, rbt_ulong local_len);

/* How many checkpoints there were. */
RABIT_API int RabitVersionNumber(void);

/* Returns 0. A program that calls it is linked with the library. */
RABIT_API int RabitLinkTag(void);

#ifdef __cplusplus
}
#endif

#endif
