// The calls of herringbone/rabit.h while nobody is lost, and the exceptions of wrong ones: a rank of a job, over libherringbone or an MPI.
#include "throws.h"

#include <herringbone/rabit.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

// There is no libherringbone over an MPI.
#define CHECK(condition) rabit::utils::Check((condition), "%s:%d: not so: %s", __FILE__, __LINE__, #condition)

namespace {

int rank_, size_;

void streams() {
    std::string text;
    rabit::utils::MemoryBufferStream out(&text);
    const std::vector<std::vector<float>> rows{{1, 2}, {}, {3}};
    out.Write(rows);
    out.Write(std::string("a\0b", 3));
    out.Write(7.5);
    rabit::utils::MemoryFixSizeBuffer in(&text[0], text.size());
    std::vector<std::vector<float>> read;
    std::string word;
    double number = 0;
    CHECK(in.Read(&read) && read == rows && in.Read(&word) && word == std::string("a\0b", 3));
    CHECK(in.Read(&number) && number == 7.5 && in.AtEnd() && !in.Read(&number));
    throws("make it larger", [&] { in.Write(number); });
    // A length that is damaged asks for no memory.
    in.Seek(0);
    in.Write(std::numeric_limits<std::uint64_t>::max());
    in.Seek(0);
    CHECK(!in.Read(&word));
    in.Seek(rabit::utils::MemoryFixSizeBuffer::SeekEnd);
    CHECK(in.Tell() == text.size());
}

template <typename T>
void folds() {
    const T mine = static_cast<T>(rank_ + 1), most = static_cast<T>(size_), sum = static_cast<T>(size_ * (size_ + 1) / 2);
    std::vector<T> values(100, mine);
    rabit::Allreduce<rabit::op::Max>(values.data(), values.size());
    CHECK(values == std::vector<T>(100, most));
    values.assign(100, mine);
    rabit::Allreduce<rabit::op::Min>(values.data(), values.size());
    CHECK(values == std::vector<T>(100, T{1}));
    rabit::Allreduce<rabit::op::Sum>(values.data(), values.size(), [&] { values.assign(100, mine); });
    CHECK(values == std::vector<T>(100, sum));
}

template <typename T>
void bits() {
    T value = static_cast<T>(1 << rank_);
    rabit::Allreduce<rabit::op::BitOR>(&value, 1);
    CHECK(value == static_cast<T>((1 << size_) - 1));
}

void moves() {
    std::string text = rank_ == size_ - 1 ? "from the last" : "something longer than that";
    rabit::Broadcast(&text, size_ - 1);
    CHECK(text == "from the last");
    std::vector<short> values(rank_ == 0 ? 5 : 2, static_cast<short>(rank_));
    rabit::Broadcast(&values, 0);
    CHECK(values == std::vector<short>(5, 0));
    // Rank r gives r + 1 elements.
    std::vector<int> all(static_cast<std::size_t>(size_ * (size_ + 1) / 2), -1), expected;
    const std::size_t begin = static_cast<std::size_t>(rank_ * (rank_ + 1) / 2), count = static_cast<std::size_t>(rank_ + 1);
    for (std::size_t at = begin; at < begin + count; at++) all[at] = rank_;
    for (int other = 0; other < size_; other++) expected.insert(expected.end(), static_cast<std::size_t>(other + 1), other);
    rabit::Allgather(all.data(), all.size(), begin, count, static_cast<std::size_t>(rabit::GetRingPrevRank() + 1));
    CHECK(all == expected);
}

// The ranks that were folded into it. The name counts these folds from 'a' on.
struct Span {
    int low, high;
    char name;
};

void widen(Span &to, const Span &from) {
    to.low = std::min(to.low, from.low);
    to.high = std::max(to.high, from.high);
    to.name = static_cast<char>(to.name + from.name - 'a' + 1);
}

// Writes down the order in which it is folded.
struct Order {
    std::string text;
    void Load(rabit::Stream &from) { CHECK(from.Read(&text)); }
    void Save(rabit::Stream &to) const { to.Write(text); }
    void Reduce(const Order &from, std::size_t) { text = "(" + text + from.text + ")"; }
};

void set(void *span) { *static_cast<Span *>(span) = Span{rank_, rank_, 'a'}; }

void reducers() {
    Span span{};
    rabit::Reducer<Span, widen>().Allreduce(&span, 1, set, &span);
    CHECK(span.low == 0 && span.high == size_ - 1 && span.name == 'a' + size_ - 1);
    std::vector<Order> orders(2);
    rabit::SerializeReducer<Order>().Allreduce(orders.data(), 64, orders.size(), [&] {
        orders[0].text = std::to_string(rank_);
        orders[1].text = "x";
    });
    const char *expected[] = {"0", "(01)", "((01)2)", "((01)(23))"};
    CHECK(orders[0].text == expected[size_ - 1] && orders[1].text.size() == std::strlen(expected[size_ - 1]));
    throws("make it larger", [&] { rabit::SerializeReducer<Order>().Allreduce(orders.data(), 2, 1); });
    rabit::Reducer<Span, widen>().Allreduce(&span, 0);
}

struct Nothing : rabit::Serializable {
    void Load(rabit::Stream *) override {}
    void Save(rabit::Stream *) const override {}
};

void versions() {
    Nothing model;
    CHECK(rabit::LoadCheckPoint(&model) == 0 && rabit::VersionNumber() == 0);
    rabit::CheckPoint(&model, &model);
    rabit::LazyCheckPoint(&model);
    CHECK(rabit::VersionNumber() == 2);
}

void exceptions() {
    double value = 1;
    throws("stop", [&] { rabit::Allreduce<rabit::op::Sum>(&value, 1, [] { throw std::runtime_error("stop"); }); });
    throws("root is", [&] { rabit::Broadcast(&value, sizeof value, size_); });
    throws("is null", [&] { rabit::Allreduce<rabit::op::Sum>(static_cast<double *>(nullptr), 1); });
    throws("smaller", [&] { rabit::Allgather(&value, std::numeric_limits<std::size_t>::max(), 0, 1, 1); });
    throws("call finalize first", [] { rabit::Init(0, nullptr); });
    throws("LoadCheckPoint without a global model", [] { rabit::LoadCheckPoint(nullptr); });
    throws("CheckPoint without a global model", [] { rabit::CheckPoint(nullptr); });
    throws("LazyCheckPoint without a global model", [] { rabit::LazyCheckPoint(nullptr); });
    // None of them was a call of the job.
    rabit::Allreduce<rabit::op::Sum>(&value, 1);
    CHECK(value == size_);
}

}  // namespace

int main(int argc, char *argv[]) {
    throws("call init first", [] { rabit::GetRank(); });
    rabit::Init(argc, argv);
    rank_ = rabit::GetRank();
    size_ = rabit::GetWorldSize();
    CHECK(rabit::IsDistributed() == (size_ > 1) && rabit::GetRingPrevRank() == (rank_ + size_ - 1) % size_);
    CHECK(!rabit::GetProcessorName().empty());
    rabit::TrackerPrintf("rank %d of %d", rank_, size_);
    streams();
    versions();
    folds<char>();
    folds<signed char>();
    folds<unsigned char>();
    folds<int>();
    folds<unsigned>();
    folds<long>();
    folds<unsigned long>();
    folds<long long>();
    folds<unsigned long long>();
    folds<float>();
    folds<double>();
    bits<unsigned char>();
    bits<int>();
    bits<unsigned long long>();
    moves();
    reducers();
    exceptions();
    rabit::Finalize();
    throws("call init first", [] { rabit::VersionNumber(); });
    return 0;
}
