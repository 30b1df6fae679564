// RABIT's calls over an MPI, without libherringbone: a part of herringbone/rabit.h, which says what each function of rabit::engine does.
//
//     mpicxx -DHERRINGBONE_RABIT_MPI program.cc -o program
//     mpirun -n 4 ./program
//
// Programs use it where an MPI is all that a cluster has. As with RABIT's own engine over MPI (src/engine_mpi.cc of dmlc/rabit), no
// process is started again, and checkpoints are only counted. What else differs from libherringbone:
//
// * If a call of MPI fails, its text is printed and the job ends. Calls with wrong arguments throw, as over libherringbone.
// * MPI chooses the order in which it adds floats. Folds of integers, Max, Min and the two Reducers give the same bits.
// * Each input is prepared. Places in the program are not used.
// * MPI is initialized and finalized here, unless the program has initialized it. Ranks are those of MPI_COMM_WORLD.
#ifndef RABIT_MPI_H_
#define RABIT_MPI_H_

#include "rabit_streams.h"

// MPI's old classes for C++ need a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace rabit {
namespace engine {

struct Job {
    // Calls of the program's own cannot come between those of this one.
    MPI_Comm group = MPI_COMM_NULL;
    // The program has not initialized MPI.
    bool is_ours = false;
    int rank = 0, size = 1, version = 0;
    // How many bytes one call of MPI moves at most: it counts with int. Tests make it smaller.
    std::size_t most_bytes = std::size_t{1} << 30;
};

inline Job &any_job() {
    static Job job;
    return job;
}

inline Job &job() {
    utils::Check(any_job().group != MPI_COMM_NULL, "init of rabit was not called, or finalize was: call init first");
    return any_job();
}

// An MPI that fails cannot be used any more. This prints its text, because MPI's own way loses it at times, and ends the job.
inline void check(int code, const char *call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    std::fprintf(stderr, "[%d] %s failed, and the job ends: %.*s\n", any_job().rank, call, length, text);
    MPI_Abort(any_job().group, EXIT_FAILURE);
}

inline void init(int, char **) {
    Job &job = any_job();
    utils::Check(job.group == MPI_COMM_NULL, "init of rabit was called before: call finalize first");
    int is_over = 0, is_there = 0;
    MPI_Finalized(&is_over);
    utils::Check(is_over == 0, "MPI was finalized and cannot begin again: call init once in a process");
    MPI_Initialized(&is_there);
    job.is_ours = is_there == 0;
    if (job.is_ours) {
        // Other threads of the program make no calls.
        int given = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given);
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &job.group);
    MPI_Comm_set_errhandler(job.group, MPI_ERRORS_RETURN);
    MPI_Comm_rank(job.group, &job.rank);
    MPI_Comm_size(job.group, &job.size);
    job.version = 0;
}

inline void finalize() {
    check(MPI_Barrier(job().group), "MPI_Barrier");
    MPI_Comm_free(&job().group);
    if (any_job().is_ours) MPI_Finalize();
}

inline int rank() { return job().rank; }

inline int size() { return job().size; }

inline int version() { return job().version; }

inline std::string processor_name() {
    job();
    char name[MPI_MAX_PROCESSOR_NAME];
    int length = 0;
    MPI_Get_processor_name(name, &length);
    return std::string(name, static_cast<std::size_t>(length));
}

inline void print(const std::string &line) {
    const std::size_t length = line.find_last_not_of('\n') + 1;
    std::fprintf(stderr, "[%d] %s\n", job().rank, line.substr(0, length).c_str());
}

// MPI's type of RABIT's number, and the size of its elements.
struct Type {
    MPI_Datatype type;
    std::size_t unit;
};

inline Type type_of(int number) {
    const Type types[] = {
        {MPI_SIGNED_CHAR, sizeof(char)}, {MPI_UNSIGNED_CHAR, sizeof(char)}, {MPI_INT, sizeof(int)}, {MPI_UNSIGNED, sizeof(int)},
        {MPI_LONG, sizeof(long)}, {MPI_UNSIGNED_LONG, sizeof(long)}, {MPI_FLOAT, sizeof(float)}, {MPI_DOUBLE, sizeof(double)},
        {MPI_LONG_LONG, sizeof(long long)}, {MPI_UNSIGNED_LONG_LONG, sizeof(long long)},
    };
    return types[number];
}

inline MPI_Op operation_of(int number) {
    const MPI_Op operations[] = {MPI_MAX, MPI_MIN, MPI_SUM, MPI_BOR};
    return operations[number];
}

// Calls `move(address, count)` for all elements of a buffer, as many at once as one call of MPI takes.
template <typename Function>
void in_pieces(void *buffer, std::size_t count, std::size_t unit, const Function &move) {
    const std::size_t most = std::max<std::size_t>(job().most_bytes / unit, 1);
    for (std::size_t at = 0; at < count; at += most) {
        move(static_cast<char *>(buffer) + at * unit, static_cast<int>(std::min(most, count - at)));
    }
}

inline void check_buffer(const void *buffer, std::size_t size) {
    utils::Check(buffer != nullptr || size == 0, "buffer is null where %zu elements are needed: pass a buffer, or a count of 0", size);
}

inline void broadcast(void *buffer, std::size_t size, int root, std::uint64_t) {
    const Job &here = job();
    utils::Check(root >= 0 && root < here.size, "root is %d: pass a rank, from 0 to %d", root, here.size - 1);
    check_buffer(buffer, size);
    in_pieces(buffer, size, 1, [&](char *piece, int count) {
        check(MPI_Bcast(piece, count, MPI_BYTE, root, here.group), "MPI_Bcast");
    });
}

template <typename Function>
void all_reduce(void *buffer, std::size_t count, int type, int operation, std::uint64_t, const Function &prepare) {
    const Job &here = job();
    check_buffer(buffer, count);
    prepare();
    const Type elements = type_of(type);
    in_pieces(buffer, count, elements.unit, [&](char *piece, int length) {
        const int code = MPI_Allreduce(MPI_IN_PLACE, piece, length, elements.type, operation_of(operation), here.group);
        check(code, "MPI_Allreduce");
    });
}

// A rank's part of a buffer that ranks gather, in bytes.
struct Slice {
    std::uint64_t total, begin, size, previous;
};

// All ranks' slices. They have to make up the buffer; all ranks have the same numbers, so they throw the same text.
inline std::vector<Slice> slices(Slice mine) {
    const Job &here = job();
    std::vector<Slice> all(static_cast<std::size_t>(here.size));
    const int count = static_cast<int>(sizeof mine);
    check(MPI_Allgather(&mine, count, MPI_BYTE, all.data(), count, MPI_BYTE, here.group), "MPI_Allgather");
    std::vector<Slice> sorted;
    for (std::size_t rank = 0; rank < all.size(); rank++) {
        const std::uint64_t previous = all[(rank + all.size() - 1) % all.size()].size;
        utils::Check(all[rank].total == all[0].total, "rank %zu gathers another number of bytes than rank 0: pass the same", rank);
        utils::Check(all[rank].previous == previous, "rank %zu is wrong about the slice of the rank before it: pass its length", rank);
        if (all[rank].size > 0) sorted.push_back(all[rank]);
    }
    std::sort(sorted.begin(), sorted.end(), [](const Slice &one, const Slice &other) { return one.begin < other.begin; });
    std::uint64_t end = 0;
    for (const Slice &slice : sorted) {
        utils::Check(slice.begin == end, "the slices leave a gap, or overlap: pass slices that follow each other");
        end += slice.size;
    }
    utils::Check(end == all[0].total, "the slices are shorter than the buffer: pass slices that make it up");
    return all;
}

template <typename Function>
void all_gather(
    void *buffer, std::size_t total, std::size_t begin, std::size_t size, std::size_t previous, std::uint64_t,
    const Function &prepare) {
    const Job &here = job();
    check_buffer(buffer, total);
    utils::Check(begin <= total && size <= total - begin, "a slice ends behind its buffer: pass one that is inside the buffer");
    prepare();
    const std::vector<Slice> all = slices(Slice{total, begin, size, previous});
    if (total <= here.most_bytes) {
        std::vector<int> counts, begins;
        for (const Slice &slice : all) {
            counts.push_back(static_cast<int>(slice.size));
            begins.push_back(static_cast<int>(slice.begin));
        }
        const int code =
            MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, buffer, counts.data(), begins.data(), MPI_BYTE, here.group);
        check(code, "MPI_Allgatherv");
        return;
    }
    for (int root = 0; root < here.size; root++) {
        const Slice &slice = all[static_cast<std::size_t>(root)];
        broadcast(static_cast<char *>(buffer) + slice.begin, static_cast<std::size_t>(slice.size), root, 0);
    }
}

inline int load(Serializable *, Serializable *) {
    job();
    return 0;
}

inline void checkpoint(const Serializable *, const Serializable *) { job().version++; }

inline void lazy_checkpoint(const Serializable *) { job().version++; }

}  // namespace engine
}  // namespace rabit

#endif
