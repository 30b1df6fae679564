// Every type with every operation, from C++, and calls from several threads. One rank of a job: types RANK SIZE ADDRESS.
#include "check.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

herringbone_communicator group;
std::uint32_t rank, size;

// The values that ranks give are 1, 2 and 3. What comes of the first one, two and three of them, by operation.
struct Expected {
    int op;
    double with[3];
};
constexpr Expected folded[] = {
    {HERRINGBONE_SUM, {1, 3, 6}},     {HERRINGBONE_AVERAGE, {1, 1.5, 2}}, {HERRINGBONE_PRODUCT, {1, 2, 6}},
    {HERRINGBONE_MIN, {1, 1, 1}},     {HERRINGBONE_MAX, {1, 2, 3}},       {HERRINGBONE_BIT_AND, {1, 0, 0}},
    {HERRINGBONE_BIT_OR, {1, 3, 3}},  {HERRINGBONE_BIT_XOR, {1, 3, 0}},
};

// 16-bit floats are written as their bits.
std::uint16_t half(double value) {
    struct Bits {
        double value;
        std::uint16_t bits;
    };
    for (Bits known : {Bits{1, 0x3c00}, Bits{1.5, 0x3e00}, Bits{2, 0x4000}, Bits{3, 0x4200}, Bits{6, 0x4600}}) {
        if (known.value == value) return known.bits;
    }
    std::abort();
}

std::uint16_t brain(double value) {
    float narrow = static_cast<float>(value);
    std::uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16);
}

template <typename Element>
void check(int dtype, bool is_float, Element (*of)(double)) {
    for (const Expected &expected : folded) {
        std::vector<Element> values(100, of(rank + 1));
        int code = herringbone_all_reduce(group, values.data(), values.data(), values.size(), dtype, expected.op);
        if (is_float && expected.op >= HERRINGBONE_BIT_AND) {
            CHECK(code == HERRINGBONE_ERROR_UNSUPPORTED);
            continue;
        }
        OK(code);
        for (Element value : values) {
            CHECK(value == of(expected.with[size - 1]));
        }
    }
}

template <typename Element>
void check(int dtype, bool is_float = false) {
    check<Element>(dtype, is_float, [](double value) { return static_cast<Element>(value); });
}

// Each thread has a communicator, and makes its own calls, right ones and wrong ones. Its last error is its own.
void in_threads() {
    std::vector<std::thread> threads;
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t at = 0; at < size; at++) ranks.push_back(at);
    for (std::uint64_t number = 1; number <= 4; number++) {
        herringbone_communicator own;
        OK(herringbone_subgroup(group, ranks.data(), ranks.size(), &own));
        threads.emplace_back([own, number] {
            CHECK(std::string(herringbone_last_error()).empty());
            for (int call = 0; call < 50; call++) {
                std::uint64_t value = number;
                OK(herringbone_all_reduce(own, &value, &value, 1, HERRINGBONE_U64, HERRINGBONE_SUM));
                CHECK(value == number * size);
                char text[32];
                std::snprintf(text, sizeof text, "0x%x ", static_cast<unsigned>(number));
                FAILS(HERRINGBONE_ERROR_HANDLE, text, herringbone_wait(number));
            }
            OK(herringbone_finalize(own));
        });
    }
    for (std::thread &thread : threads) thread.join();
}

// Threads that wait for one work get its result, or are told that it is over.
void one_work() {
    herringbone_work work;
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    float value = 2;
    OK(herringbone_all_reduce_async(group, &value, &value, 1, HERRINGBONE_F32, HERRINGBONE_SUM, &work));
    for (int number = 0; number < 4; number++) {
        threads.emplace_back([work, &right] {
            int code = herringbone_wait(work);
            CHECK(code == HERRINGBONE_OK || code == HERRINGBONE_ERROR_HANDLE);
            right += code == HERRINGBONE_OK;
        });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(right >= 1 && value == 2 * static_cast<float>(size));
}

// One thread finalizes while another calls: the calls succeed, and then are refused.
void finalized_meanwhile() {
    herringbone_options options = HERRINGBONE_OPTIONS_INIT;
    herringbone_communicator alone;
    OK(herringbone_init_with(&options, &alone));
    std::atomic<bool> has_called{false};
    std::thread calling([alone, &has_called] {
        int code;
        while ((code = herringbone_barrier(alone)) == HERRINGBONE_OK) has_called = true;
        CHECK(code == HERRINGBONE_ERROR_HANDLE || code == HERRINGBONE_ERROR_CLOSED);
    });
    while (!has_called) std::this_thread::yield();
    OK(herringbone_finalize(alone));
    calling.join();
}

}  // namespace

int main(int argc, char **argv) {
    CHECK(argc == 4);
    herringbone_options options = HERRINGBONE_OPTIONS_INIT;
    options.rank = static_cast<std::uint32_t>(std::stoul(argv[1]));
    options.world_size = static_cast<std::uint32_t>(std::stoul(argv[2]));
    options.address = argv[3];
    options.token = "a token of this job";
    options.timeout_seconds = 20;
    OK(herringbone_init_with(&options, &group));
    OK(herringbone_rank(group, &rank));
    OK(herringbone_size(group, &size));
    CHECK(rank == options.rank && size == options.world_size);
    check<float>(HERRINGBONE_F32, true);
    check<double>(HERRINGBONE_F64, true);
    check<std::uint16_t>(HERRINGBONE_F16, true, half);
    check<std::uint16_t>(HERRINGBONE_BF16, true, brain);
    check<std::int8_t>(HERRINGBONE_I8);
    check<std::int16_t>(HERRINGBONE_I16);
    check<std::int32_t>(HERRINGBONE_I32);
    check<std::int64_t>(HERRINGBONE_I64);
    check<std::uint8_t>(HERRINGBONE_U8);
    check<std::uint16_t>(HERRINGBONE_U16);
    check<std::uint32_t>(HERRINGBONE_U32);
    check<std::uint64_t>(HERRINGBONE_U64);
    in_threads();
    one_work();
    finalized_meanwhile();
    OK(herringbone_finalize(group));
}
