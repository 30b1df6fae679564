// What herringbone/rabit_mpi.h does that libherringbone does not: a rank of a job over an MPI. With an argument its ranks broadcast
// different sizes, which ends it.
#include "../capi/throws.h"

#include <herringbone/rabit.h>

#include <vector>

#define CHECK(condition) rabit::utils::Check((condition), "%s:%d: not so: %s", __FILE__, __LINE__, #condition)

namespace {

struct Nothing : rabit::Serializable {
    void Load(rabit::Stream *) override {}
    void Save(rabit::Stream *) const override {}
};

// Calls of more bytes than one call of MPI may move.
void pieces(int rank, int size) {
    rabit::engine::any_job().most_bytes = 36;
    std::vector<double> sums(1000);
    for (std::size_t at = 0; at < sums.size(); at++) sums[at] = rank + static_cast<double>(at);
    rabit::Allreduce<rabit::op::Sum>(sums.data(), sums.size());
    for (std::size_t at = 0; at < sums.size(); at++) CHECK(sums[at] == size * (size - 1) / 2 + size * static_cast<double>(at));
    std::vector<int> sent(1001, rank);
    rabit::Broadcast(&sent, size - 1);
    CHECK(sent == std::vector<int>(1001, size - 1));
    // The last rank's slice is the first; rank r gives r elements.
    const std::size_t ranks = static_cast<std::size_t>(size), mine = static_cast<std::size_t>(rank);
    std::vector<int> all(ranks * (ranks - 1) / 2, -1), expected;
    for (std::size_t other = ranks; other-- > 0;) expected.insert(expected.end(), other, static_cast<int>(other));
    const std::size_t begin = all.size() - mine * (mine + 1) / 2;
    for (std::size_t at = begin; at < begin + mine; at++) all[at] = rank;
    rabit::Allgather(all.data(), all.size(), begin, mine, (mine + ranks - 1) % ranks);
    CHECK(all == expected);
}

void wrong_slices(int size) {
    int buffer[8];
    throws("inside the buffer", [&] { rabit::Allgather(buffer, 8, 7, 2, 2); });
    throws("make it up", [&] { rabit::Allgather(buffer, 8, 0, 0, 0); });
    throws("the rank before it", [&] { rabit::Allgather(buffer, 8, 0, 8, 7); });
    if (size > 1) throws("follow each other", [&] { rabit::Allgather(buffer, 8, 0, 4, 4); });
}

void versions() {
    Nothing model;
    rabit::CheckPoint(&model);
    CHECK(rabit::VersionNumber() == 1 && rabit::LoadCheckPoint(&model) == 0);
}

}  // namespace

int main(int argc, char *argv[]) {
    // A program that uses MPI itself.
    MPI_Init(&argc, &argv);
    rabit::Init(argc, argv);
    const int rank = rabit::GetRank(), size = rabit::GetWorldSize();
    if (argc > 1) {
        std::vector<char> bytes(rank == 0 ? 100 : 10);
        rabit::Broadcast(bytes.data(), bytes.size(), 0);
        rabit::Finalize();
        return 0;
    }
    pieces(rank, size);
    wrong_slices(size);
    versions();
    rabit::Finalize();
    int is_over = 1;
    MPI_Finalized(&is_over);
    CHECK(is_over == 0);
    rabit::Init(argc, argv);
    CHECK(rabit::GetRank() == rank && rabit::VersionNumber() == 0);
    rabit::Finalize();
    MPI_Finalize();
    throws("cannot begin again", [] { rabit::Init(0, nullptr); });
    return 0;
}
