// RABIT's calls over libherringbone: a part of herringbone/rabit.h, which says what each function of rabit::engine does.
#ifndef RABIT_LIBRARY_H_
#define RABIT_LIBRARY_H_

#include "rabit_streams.h"

#include <exception>
#include <utility>

// Programs do not call these. Each function returns 0 or a code of herringbone.h, whose text herringbone_last_error returns. Sizes are
// in bytes, `place` is a number for the place in the program, 0 if it is not known.
extern "C" {
const char *herringbone_last_error(void);
int herringbone_rabit_init(int argc, char **argv);
int herringbone_rabit_finalize(void);
int herringbone_rabit_rank(std::uint32_t *rank);
int herringbone_rabit_size(std::uint32_t *size);
int herringbone_rabit_version(std::uint32_t *version);
int herringbone_rabit_print(const char *line);
int herringbone_rabit_name(char *name, std::size_t capacity, std::size_t *length);
int herringbone_rabit_broadcast(void *buffer, std::size_t size, int root, std::uint64_t place);
// A call in two parts. If `needs_input` is 1, the program puts the input into the buffer and calls herringbone_rabit_finish. If it is
// 0, the result is there. Until then the buffer belongs to the library.
int herringbone_rabit_begin_all_reduce(
    void *buffer, std::size_t count, int dtype, int op, std::uint64_t place, int *needs_input);
int herringbone_rabit_begin_all_gather(
    void *buffer, std::size_t total, std::size_t begin, std::size_t size, std::size_t previous, std::uint64_t place,
    int *needs_input);
int herringbone_rabit_finish(void);
// The models are the library's until the next call of this function, or until the end. Version 0: there is none.
int herringbone_rabit_load(
    std::uint32_t *version, const char **global, std::size_t *global_size, const char **local, std::size_t *local_size);
// Without a local model, `local` is null.
int herringbone_rabit_checkpoint(const char *global, std::size_t global_size, const char *local, std::size_t local_size);
// `save` shows where the model's bytes are and returns 0, or else another number. They are needed until it returns to the library.
int herringbone_rabit_lazy_checkpoint(int (*save)(void *argument, const char **bytes, std::size_t *size), void *argument);
}

namespace rabit {
namespace engine {

// What a lazy model's Save has thrown inside the library, until the call that needed the model throws it.
inline std::exception_ptr &thrown_in_save() {
    static std::exception_ptr thrown;
    return thrown;
}

inline void check(int code) {
    if (code == 0) return;
    std::exception_ptr thrown;
    std::swap(thrown, thrown_in_save());
    if (thrown) std::rethrow_exception(thrown);
    throw std::runtime_error(herringbone_last_error());
}

inline void init(int argc, char **argv) { check(herringbone_rabit_init(argc, argv)); }

inline void finalize() { check(herringbone_rabit_finalize()); }

inline int rank() {
    std::uint32_t rank = 0;
    check(herringbone_rabit_rank(&rank));
    return static_cast<int>(rank);
}

inline int size() {
    std::uint32_t size = 0;
    check(herringbone_rabit_size(&size));
    return static_cast<int>(size);
}

inline int version() {
    std::uint32_t version = 0;
    check(herringbone_rabit_version(&version));
    return static_cast<int>(version);
}

inline std::string processor_name() {
    char name[256];
    std::size_t length = 0;
    check(herringbone_rabit_name(name, sizeof name, &length));
    return std::string(name, length);
}

inline void print(const std::string &line) { check(herringbone_rabit_print(line.c_str())); }

inline void broadcast(void *buffer, std::size_t size, int root, std::uint64_t place) {
    check(herringbone_rabit_broadcast(buffer, size, root, place));
}

template <typename Function>
void all_reduce(void *buffer, std::size_t count, int type, int operation, std::uint64_t place, const Function &prepare) {
    int needs_input = 0;
    check(herringbone_rabit_begin_all_reduce(buffer, count, type, operation, place, &needs_input));
    if (needs_input == 0) return;
    prepare();
    check(herringbone_rabit_finish());
}

template <typename Function>
void all_gather(
    void *buffer, std::size_t total, std::size_t begin, std::size_t size, std::size_t previous, std::uint64_t place,
    const Function &prepare) {
    int needs_input = 0;
    check(herringbone_rabit_begin_all_gather(buffer, total, begin, size, previous, place, &needs_input));
    if (needs_input == 0) return;
    prepare();
    check(herringbone_rabit_finish());
}

inline std::string saved(const Serializable &model) {
    std::string bytes;
    utils::MemoryBufferStream stream(&bytes);
    model.Save(&stream);
    return bytes;
}

inline void load_from(const char *bytes, std::size_t size, Serializable *model) {
    // It is only read from.
    utils::MemoryFixSizeBuffer stream(const_cast<char *>(bytes), size);
    model->Load(&stream);
}

inline int load(Serializable *global, Serializable *local) {
    std::uint32_t version = 0;
    const char *global_bytes = nullptr, *local_bytes = nullptr;
    std::size_t global_size = 0, local_size = 0;
    check(herringbone_rabit_load(&version, &global_bytes, &global_size, &local_bytes, &local_size));
    if (version == 0) return 0;
    utils::Check(local == nullptr || local_size > 0, "the checkpoint has no local model: pass one to CheckPoint on all ranks");
    load_from(global_bytes, global_size, global);
    if (local != nullptr) load_from(local_bytes, local_size - 1, local);
    return static_cast<int>(version);
}

inline void checkpoint(const Serializable *global, const Serializable *local) {
    const std::string global_bytes = saved(*global);
    const std::string local_bytes = local != nullptr ? saved(*local) + '\0' : std::string();
    const char *local_start = local != nullptr ? local_bytes.data() : nullptr;
    check(herringbone_rabit_checkpoint(global_bytes.data(), global_bytes.size(), local_start, local_bytes.size()));
}

// What a lazy checkpoint asks for. No exception crosses the library: `check` throws it behind that.
inline int save_later(void *model, const char **bytes, std::size_t *size) {
    static std::string kept;
    try {
        kept = saved(*static_cast<const Serializable *>(model));
    } catch (...) {
        thrown_in_save() = std::current_exception();
        return 1;
    }
    *bytes = kept.data();
    *size = kept.size();
    return 0;
}

inline void lazy_checkpoint(const Serializable *global) {
    check(herringbone_rabit_lazy_checkpoint(save_later, const_cast<Serializable *>(global)));
}

}  // namespace engine
}  // namespace rabit

#endif
