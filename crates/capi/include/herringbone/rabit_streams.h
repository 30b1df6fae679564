// Streams and objects that are written to them, with the names of RABIT: a part of herringbone/rabit.h, without the library.
//
// Numbers, and structs of them, are written as their bytes; texts and vectors as their length in 8 bytes, and their elements.
#ifndef RABIT_STREAMS_H_
#define RABIT_STREAMS_H_

#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

// The text that a function's format and values make.
#define RABIT_TEXT_(text, format) \
    char text[1024]; \
    std::va_list text##_values; \
    va_start(text##_values, format); \
    std::vsnprintf(text, sizeof text, format, text##_values); \
    va_end(text##_values)

namespace rabit {

// Bytes in their order.
class Stream {
 public:
    virtual ~Stream() = default;

    // Reads up to `size` bytes, and returns how many there were.
    virtual std::size_t Read(void *to, std::size_t size) = 0;
    virtual void Write(const void *from, std::size_t size) = 0;

    // Reads a value; false if the stream ends before it.
    template <typename T>
    bool Read(T *value);
    template <typename T>
    void Write(const T &value);
};

// A stream with a position.
class SeekStream : public Stream {
 public:
    using Stream::Read;
    using Stream::Write;
    virtual void Seek(std::size_t position) = 0;
    virtual std::size_t Tell() = 0;
    virtual bool AtEnd() const = 0;
};

// What a checkpoint can keep.
class Serializable {
 public:
    virtual ~Serializable() = default;
    virtual void Load(Stream *from) = 0;
    virtual void Save(Stream *to) const = 0;
};

// The first element, or null if there is none.
template <typename T>
T *BeginPtr(std::vector<T> &values) {
    return values.empty() ? nullptr : values.data();
}
template <typename T>
const T *BeginPtr(const std::vector<T> &values) {
    return values.empty() ? nullptr : values.data();
}
inline char *BeginPtr(std::string &text) { return text.empty() ? nullptr : &text[0]; }
inline const char *BeginPtr(const std::string &text) { return text.empty() ? nullptr : text.data(); }

namespace utils {

// RABIT ends the process; here the program gets a std::runtime_error.
[[noreturn]] inline void Error(const char *format, ...) {
    RABIT_TEXT_(text, format);
    throw std::runtime_error(text);
}

inline void Check(bool is_so, const char *format, ...) {
    if (is_so) return;
    RABIT_TEXT_(text, format);
    throw std::runtime_error(text);
}

inline void Assert(bool is_so, const char *format, ...) {
    if (is_so) return;
    RABIT_TEXT_(text, format);
    throw std::runtime_error(text);
}

// Memory of the program, which does not grow: writing beyond its end throws.
struct MemoryFixSizeBuffer : public SeekStream {
 public:
    using Stream::Read;
    using Stream::Write;
    // Where Seek goes to the end.
    static constexpr std::size_t SeekEnd = static_cast<std::size_t>(-1);

    MemoryFixSizeBuffer(void *start, std::size_t size) : start_(static_cast<char *>(start)), size_(size), at_(0) {}

    std::size_t Read(void *to, std::size_t size) override {
        const std::size_t count = std::min(size, size_ - at_);
        if (count > 0) std::memcpy(to, start_ + at_, count);
        at_ += count;
        return count;
    }
    void Write(const void *from, std::size_t size) override {
        if (size == 0) return;
        Check(size <= size_ - at_, "%zu bytes at %zu of a buffer of %zu: make it larger", size, at_, size_);
        std::memcpy(start_ + at_, from, size);
        at_ += size;
    }
    void Seek(std::size_t position) override { at_ = std::min(position, size_); }
    std::size_t Tell() override { return at_; }
    bool AtEnd() const override { return at_ == size_; }

 private:
    char *start_;
    std::size_t size_;
    std::size_t at_;
};

// A string of the program, which grows.
struct MemoryBufferStream : public SeekStream {
 public:
    using Stream::Read;
    using Stream::Write;
    explicit MemoryBufferStream(std::string *buffer) : buffer_(buffer), at_(0) {}

    std::size_t Read(void *to, std::size_t size) override {
        const std::size_t count = at_ < buffer_->size() ? std::min(size, buffer_->size() - at_) : 0;
        if (count > 0) std::memcpy(to, buffer_->data() + at_, count);
        at_ += count;
        return count;
    }
    void Write(const void *from, std::size_t size) override {
        if (size == 0) return;
        if (buffer_->size() < at_ + size) buffer_->resize(at_ + size);
        std::memcpy(&(*buffer_)[at_], from, size);
        at_ += size;
    }
    void Seek(std::size_t position) override { at_ = position; }
    std::size_t Tell() override { return at_; }
    bool AtEnd() const override { return at_ >= buffer_->size(); }

 private:
    std::string *buffer_;
    std::size_t at_;
};

}  // namespace utils

namespace detail {

// Whether a type has a member Save that takes a stream, as Serializable has.
template <typename T>
struct HasSave {
    template <typename U>
    static auto test(const U *value, Stream *to) -> decltype(value->Save(to), std::true_type());
    static std::false_type test(...);
    static constexpr bool value = decltype(test(static_cast<const T *>(nullptr), static_cast<Stream *>(nullptr)))::value;
};

// How values of a type are written.
template <typename T>
struct Form {
    static_assert(!HasSave<T>::value, "it has Load and Save: call them with the stream");
    static_assert(std::is_trivially_copyable<T>::value, "write its members, or their bytes");
    static bool read(Stream &from, T *value) { return from.Read(static_cast<void *>(value), sizeof *value) == sizeof *value; }
    static void write(Stream &to, const T &value) { to.Write(static_cast<const void *>(&value), sizeof value); }
};

// Elements whose bytes are read at once, and in steps: a length may be damaged.
template <typename Elements>
bool read_elements(Stream &from, Elements *elements) {
    constexpr std::size_t unit = sizeof((*elements)[0]);
    constexpr std::size_t step = (std::size_t{1} << 20) / unit + 1;
    std::uint64_t count;
    if (!from.Read(&count)) return false;
    elements->clear();
    while (elements->size() < count) {
        const std::size_t before = elements->size();
        const std::size_t more = static_cast<std::size_t>(std::min<std::uint64_t>(count - before, std::max(before, step)));
        elements->resize(before + more);
        if (from.Read(static_cast<void *>(&(*elements)[before]), more * unit) != more * unit) return false;
    }
    return true;
}

template <typename Elements>
void write_elements(Stream &to, const Elements &elements) {
    to.Write(static_cast<std::uint64_t>(elements.size()));
    if (!elements.empty()) to.Write(static_cast<const void *>(&elements[0]), elements.size() * sizeof elements[0]);
}

template <>
struct Form<std::string> {
    static bool read(Stream &from, std::string *text) { return read_elements(from, text); }
    static void write(Stream &to, const std::string &text) { write_elements(to, text); }
};

template <typename T>
struct Form<std::vector<T>> {
    static_assert(!std::is_same<T, bool>::value, "std::vector<bool> packs its elements into bits: write a std::vector<char>");
    using Bytes = std::is_trivially_copyable<T>;
    static bool read(Stream &from, std::vector<T> *values) { return read(from, values, Bytes{}); }
    static void write(Stream &to, const std::vector<T> &values) { write(to, values, Bytes{}); }

 private:
    static bool read(Stream &from, std::vector<T> *values, std::true_type) { return read_elements(from, values); }
    static void write(Stream &to, const std::vector<T> &values, std::true_type) { write_elements(to, values); }
    static bool read(Stream &from, std::vector<T> *values, std::false_type) {
        std::uint64_t count;
        if (!from.Read(&count)) return false;
        values->clear();
        for (; count > 0; count--) {
            values->emplace_back();
            if (!from.Read(&values->back())) return false;
        }
        return true;
    }
    static void write(Stream &to, const std::vector<T> &values, std::false_type) {
        to.Write(static_cast<std::uint64_t>(values.size()));
        for (const T &value : values) to.Write(value);
    }
};

}  // namespace detail

template <typename T>
bool Stream::Read(T *value) {
    return detail::Form<T>::read(*this, value);
}

template <typename T>
void Stream::Write(const T &value) {
    detail::Form<T>::write(*this, value);
}

}  // namespace rabit

#endif
