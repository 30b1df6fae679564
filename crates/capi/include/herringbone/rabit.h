// RABIT's interface for C++11: programs that continue after the loss of a process. Header only, over libherringbone.so; with
// -DHERRINGBONE_RABIT_MPI over an MPI, where nothing is recovered (rabit_mpi.h says what else differs).
//
//     #include <herringbone/rabit.h>
//
//     int main(int argc, char *argv[]) {
//         rabit::Init(argc, argv);
//         Model model;                                    // a rabit::Serializable
//         if (rabit::LoadCheckPoint(&model) == 0) model.begin();
//         while (rabit::VersionNumber() < 100) {
//             std::vector<double> sums(model.size());
//             rabit::Allreduce<rabit::op::Sum>(sums.data(), sums.size(), [&] { model.fill(sums); });
//             model.update(sums);
//             rabit::CheckPoint(&model);
//         }
//         rabit::Finalize();
//     }
//
// `herringbone launch --max-attempts 20 -n 4 ./program` starts it, and starts again each process that ends with a failure. All ranks
// make the same calls in the same order, from one thread. A process that is started again repeats the calls that its predecessor made
// since the checkpoint. If the others have their results, these calls return at once, and the function that prepares the input is not
// called.
//
// The names are the same as in <rabit/rabit.h> (dmlc/rabit), so a program exchanges the include. Differences:
//
// * Errors. RABIT ends the process. Here a call throws std::runtime_error with the library's text. The contents of its buffers and
//   models are undefined then: end the program with a failure, so that it is started again. If a function that prepares the input
//   throws, or Load or Save, the call throws the same exception. A lazy model's Save runs inside a later call, if a process is lost.
// * Calls before LoadCheckPoint belong to no version. A new process finds the results of broadcasts by their order, and the results
//   of other calls by their place in the program: its file, line and function, which are default arguments. So make such a call from
//   the same place on all ranks. Compilers without __builtin_FILE know no places; with them the order decides for all calls.
// * Reducer and SerializeReducer gather all ranks' inputs and fold them on each rank, in the canonical order of ranks: (0 + 1) + 2
//   for three ranks, ((0 + 1) + (2 + 3)) + (4 + 5) for six. So the result has the same bits every time, on all ranks. A rank needs
//   memory for the inputs of all. Allreduce with an operation of op follows the same order without that.
// * A local model is kept with one byte more than Save writes. Otherwise the library would take a model of 0 bytes for none.
// * TrackerPrint prints on standard error, because there is no tracker.
#ifndef RABIT_RABIT_H_
#define RABIT_RABIT_H_

#include "rabit_streams.h"

#include <functional>

#if defined(__GNUC__)
#define RABIT_FILE_ __builtin_FILE()
#define RABIT_LINE_ __builtin_LINE()
#define RABIT_CALLER_ __builtin_FUNCTION()
#else
#define RABIT_FILE_ ""
#define RABIT_LINE_ 0
#define RABIT_CALLER_ ""
#endif

// What the interface is written over, in the namespace rabit::engine: `init`, `finalize`, `rank`, `size`, `version`, `processor_name`,
// `print`, `broadcast`, `load`, `checkpoint` and `lazy_checkpoint` do the same as the functions below that call them. The others:
//
//     all_reduce(buffer, count, type, operation, place, prepare)              type: TypeNumber, operation: kType of op
//     all_gather(buffer, total, begin, size, previous, place, prepare)        as Allgather, in bytes
//
// `place` is place_of a call. They call `prepare()` before they read the buffer, and not at all if they have the result.
#ifdef HERRINGBONE_RABIT_MPI
#include "rabit_mpi.h"
#else
#include "rabit_library.h"
#endif

namespace rabit {

namespace detail {

// FNV-1a: the same number in every process of a program.
inline std::uint64_t hashed(std::uint64_t hash, const char *text) {
    for (; *text != '\0'; text++) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
    return hash * 0x100000001b3;
}

inline std::uint64_t place_of(const char *file, int line, const char *caller) {
    if (line <= 0) return 0;
    const std::uint64_t hash = hashed(hashed(0xcbf29ce484222325, file), caller);
    return (hash ^ static_cast<std::uint64_t>(line)) * 0x100000001b3;
}

// RABIT's number of a type.
template <typename T>
struct TypeNumber {
    static_assert(
        sizeof(T) == 0,
        "Allreduce folds char, signed char, unsigned char, int, unsigned, long, unsigned long, long long, unsigned long long, float and "
        "double: convert the elements to one of these, or fold them with a Reducer");
    static constexpr int value = 0;
};
template <> struct TypeNumber<char> { static constexpr int value = 0; };
template <> struct TypeNumber<signed char> { static constexpr int value = 0; };
template <> struct TypeNumber<unsigned char> { static constexpr int value = 1; };
template <> struct TypeNumber<int> { static constexpr int value = 2; };
template <> struct TypeNumber<unsigned> { static constexpr int value = 3; };
template <> struct TypeNumber<long> { static constexpr int value = 4; };
template <> struct TypeNumber<unsigned long> { static constexpr int value = 5; };
template <> struct TypeNumber<float> { static constexpr int value = 6; };
template <> struct TypeNumber<double> { static constexpr int value = 7; };
template <> struct TypeNumber<long long> { static constexpr int value = 8; };
template <> struct TypeNumber<unsigned long long> { static constexpr int value = 9; };

// Calls a function that is given as RABIT's programs give it, if there is one.
struct Prepare {
    void (*function)(void *);
    void *argument;
    void operator()() const {
        if (function != nullptr) function(argument);
    }
};

inline void prepared(const std::function<void()> &prepare) {
    if (prepare) prepare();
}
inline void prepared(const Prepare &prepare) { prepare(); }

}  // namespace detail

// How elements are folded.
namespace op {
struct Max { static constexpr int kType = 0; };
struct Min { static constexpr int kType = 1; };
struct Sum { static constexpr int kType = 2; };
struct BitOR { static constexpr int kType = 3; };
}  // namespace op

// Joins the job that the environment describes, or continues in it if this process takes the place of a lost one.
inline bool Init(int argc, char *argv[]) {
    engine::init(argc, argv);
    return true;
}

// Waits until all ranks have come to their end, and leaves.
inline bool Finalize() {
    engine::finalize();
    return true;
}

inline int GetRank() { return engine::rank(); }

inline int GetWorldSize() { return engine::size(); }

// The rank before this one; for rank 0, the last one.
inline int GetRingPrevRank() {
    const int size = GetWorldSize();
    return (GetRank() + size - 1) % size;
}

inline bool IsDistributed() { return GetWorldSize() > 1; }

inline std::string GetProcessorName() { return engine::processor_name(); }

inline void TrackerPrint(const std::string &line) { engine::print(line); }

inline void TrackerPrintf(const char *format, ...) {
    RABIT_TEXT_(text, format);
    TrackerPrint(text);
}

// How many checkpoints there were.
inline int VersionNumber() { return engine::version(); }

// Copies bytes of rank `root` to all others.
inline void Broadcast(
    void *buffer, std::size_t size, int root, const char *file = RABIT_FILE_, int line = RABIT_LINE_,
    const char *caller = RABIT_CALLER_) {
    engine::broadcast(buffer, size, root, detail::place_of(file, line, caller));
}

// A vector or text of any length, in two calls: its length, and its elements.
template <typename T>
void Broadcast(
    std::vector<T> *values, int root, const char *file = RABIT_FILE_, int line = RABIT_LINE_,
    const char *caller = RABIT_CALLER_) {
    static_assert(!std::is_same<T, bool>::value, "std::vector<bool> packs its elements into bits: broadcast a std::vector<char>");
    static_assert(std::is_trivially_copyable<T>::value, "broadcast the bytes that it is written as");
    std::uint64_t count = values->size();
    Broadcast(&count, sizeof count, root, file, line, caller);
    values->resize(static_cast<std::size_t>(count));
    if (count > 0) Broadcast(values->data(), values->size() * sizeof(T), root, file, line, caller);
}

inline void Broadcast(
    std::string *text, int root, const char *file = RABIT_FILE_, int line = RABIT_LINE_,
    const char *caller = RABIT_CALLER_) {
    std::uint64_t size = text->size();
    Broadcast(&size, sizeof size, root, file, line, caller);
    text->resize(static_cast<std::size_t>(size));
    if (size > 0) Broadcast(&(*text)[0], text->size(), root, file, line, caller);
}

namespace detail {

template <typename OP, typename T, typename Function>
void all_reduce(T *buffer, std::size_t count, const Function &prepare, std::uint64_t place) {
    static_assert(OP::kType != op::BitOR::kType || std::is_integral<T>::value, "only integers have bits to fold");
    engine::all_reduce(buffer, count, TypeNumber<T>::value, OP::kType, place, [&] { prepared(prepare); });
}

// Gathers parts of `size` bytes of all ranks, by rank. `prepare` gives this rank's part.
template <typename Function>
std::vector<char> gathered(std::size_t size, const Function &prepare, std::uint64_t place) {
    const std::size_t ranks = static_cast<std::size_t>(GetWorldSize()), rank = static_cast<std::size_t>(GetRank());
    utils::Check(size <= static_cast<std::size_t>(-1) / 2 / ranks, "%zu bytes of each rank: pass a smaller count", size);
    std::vector<char> all(size * ranks);
    engine::all_gather(
        all.data(), all.size(), rank * size, size, size, place, [&] { prepare(all.data() + rank * size); });
    return all;
}

// Folds parts in the canonical order of ranks: `fold(to, from)`.
template <typename Function>
void fold_in_order(std::size_t ranks, const Function &fold) {
    for (std::size_t step = 1; step < ranks; step *= 2) {
        for (std::size_t to = 0; to + step < ranks; to += 2 * step) fold(to, to + step);
    }
}

}  // namespace detail

// Folds `count` elements over all ranks, in place. If there is a function to prepare the input, it is called before that, unless the
// others have the result already. It makes no call that moves data.
template <typename OP, typename T>
void Allreduce(
    T *buffer, std::size_t count, void (*prepare)(void *) = nullptr, void *argument = nullptr,
    const char *file = RABIT_FILE_, int line = RABIT_LINE_, const char *caller = RABIT_CALLER_) {
    const detail::Prepare function{prepare, argument};
    detail::all_reduce<OP>(buffer, count, function, detail::place_of(file, line, caller));
}

template <typename OP, typename T>
void Allreduce(
    T *buffer, std::size_t count, std::function<void()> prepare, const char *file = RABIT_FILE_, int line = RABIT_LINE_,
    const char *caller = RABIT_CALLER_) {
    detail::all_reduce<OP>(buffer, count, prepare, detail::place_of(file, line, caller));
}

// Gathers slices of a buffer of `total` elements. This rank gives the `count` elements from `begin` on, the rank before it
// `previous`. The slices of all ranks make up the buffer.
template <typename T>
void Allgather(
    T *buffer, std::size_t total, std::size_t begin, std::size_t count, std::size_t previous, const char *file = RABIT_FILE_,
    int line = RABIT_LINE_, const char *caller = RABIT_CALLER_) {
    static_assert(std::is_trivially_copyable<T>::value, "gather the bytes that it is written as");
    constexpr std::size_t most = static_cast<std::size_t>(-1) / sizeof(T);
    utils::Check(std::max({total, begin, count, previous}) <= most, "%zu elements: pass smaller sizes", total);
    const std::size_t unit = sizeof(T);
    const std::uint64_t place = detail::place_of(file, line, caller);
    engine::all_gather(buffer, total * unit, begin * unit, count * unit, previous * unit, place, [] {});
}

// Loads the last checkpoint into these models, and returns its version. 0: there is none, and the models are not touched.
inline int LoadCheckPoint(Serializable *global, Serializable *local = nullptr) {
    utils::Check(global != nullptr, "LoadCheckPoint without a global model: pass one");
    return engine::load(global, local);
}

// Ends a version: a process that starts from now on begins with these models. Returns when all ranks have called it. The global model
// is the same on all ranks. The local one is this rank's own, and the next ranks keep copies of it: all ranks have one, or none.
inline void CheckPoint(const Serializable *global, const Serializable *local = nullptr) {
    utils::Check(global != nullptr, "CheckPoint without a global model: pass one");
    engine::checkpoint(global, local);
}

// As CheckPoint, with a model that stays where it is: Save is called only if a process is lost, inside the call that notices it. In
// each version, make all calls first, then change the model, then make the next checkpoint. Do not change it between calls, and do not
// destroy it before the next checkpoint or Finalize has returned.
inline void LazyCheckPoint(const Serializable *global) {
    utils::Check(global != nullptr, "LazyCheckPoint without a global model: pass one");
    engine::lazy_checkpoint(global);
}

// Folds elements with a function of the program: `reduce(to, from)` folds `from` into `to`.
template <typename T, void (*reduce)(T &to, const T &from)>
class Reducer {
 public:
    void Allreduce(
        T *buffer, std::size_t count, void (*prepare)(void *) = nullptr, void *argument = nullptr,
        const char *file = RABIT_FILE_, int line = RABIT_LINE_, const char *caller = RABIT_CALLER_) {
        run(buffer, count, detail::Prepare{prepare, argument}, detail::place_of(file, line, caller));
    }
    void Allreduce(
        T *buffer, std::size_t count, std::function<void()> prepare, const char *file = RABIT_FILE_, int line = RABIT_LINE_,
        const char *caller = RABIT_CALLER_) {
        run(buffer, count, prepare, detail::place_of(file, line, caller));
    }

 private:
    static_assert(std::is_trivially_copyable<T>::value, "fold it with SerializeReducer");

    template <typename Function>
    void run(T *buffer, std::size_t count, const Function &prepare, std::uint64_t place) {
        utils::Check(count <= static_cast<std::size_t>(-1) / 2 / sizeof(T), "%zu elements: pass a smaller count", count);
        const std::size_t bytes = count * sizeof(T);
        auto give = [&](char *part) {
            detail::prepared(prepare);
            if (bytes > 0) std::memcpy(part, buffer, bytes);
        };
        std::vector<char> all = detail::gathered(bytes, give, place);
        // Parts need not be aligned for the type.
        detail::fold_in_order(static_cast<std::size_t>(GetWorldSize()), [&](std::size_t to, std::size_t from) {
            for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
                T into, other;
                std::memcpy(static_cast<void *>(&into), &all[to * bytes + at], sizeof(T));
                std::memcpy(static_cast<void *>(&other), &all[from * bytes + at], sizeof(T));
                reduce(into, other);
                std::memcpy(&all[to * bytes + at], static_cast<const void *>(&into), sizeof(T));
            }
        });
        if (bytes > 0) std::memcpy(static_cast<void *>(buffer), all.data(), bytes);
    }
};

// Folds objects that have Load(Stream &), Save(Stream &) const, and Reduce(const T &from, size_t most_bytes). Each is written into
// at most so many bytes.
template <typename T>
class SerializeReducer {
 public:
    void Allreduce(
        T *objects, std::size_t most_bytes, std::size_t count, void (*prepare)(void *) = nullptr, void *argument = nullptr,
        const char *file = RABIT_FILE_, int line = RABIT_LINE_, const char *caller = RABIT_CALLER_) {
        run(objects, most_bytes, count, detail::Prepare{prepare, argument}, detail::place_of(file, line, caller));
    }
    void Allreduce(
        T *objects, std::size_t most_bytes, std::size_t count, std::function<void()> prepare,
        const char *file = RABIT_FILE_, int line = RABIT_LINE_, const char *caller = RABIT_CALLER_) {
        run(objects, most_bytes, count, prepare, detail::place_of(file, line, caller));
    }

 private:
    template <typename Function>
    void run(T *objects, std::size_t most, std::size_t count, const Function &prepare, std::uint64_t place) {
        utils::Check(
            most == 0 || count <= static_cast<std::size_t>(-1) / 2 / most, "%zu objects: pass a smaller count", count);
        auto give = [&](char *part) {
            detail::prepared(prepare);
            for (std::size_t number = 0; number < count; number++) {
                utils::MemoryFixSizeBuffer stream(part + number * most, most);
                objects[number].Save(stream);
            }
        };
        const std::size_t ranks = static_cast<std::size_t>(GetWorldSize());
        std::vector<char> all = detail::gathered(most * count, give, place);
        for (std::size_t number = 0; number < count; number++) {
            std::vector<T> parts(ranks);
            for (std::size_t rank = 0; rank < ranks; rank++) {
                utils::MemoryFixSizeBuffer stream(all.data() + (rank * count + number) * most, most);
                parts[rank].Load(stream);
            }
            detail::fold_in_order(
                ranks, [&](std::size_t to, std::size_t from) { parts[to].Reduce(parts[from], most); });
            objects[number] = std::move(parts[0]);
        }
    }
};

}  // namespace rabit

#undef RABIT_CALLER_
#undef RABIT_FILE_
#undef RABIT_LINE_
#undef RABIT_TEXT_

#endif
