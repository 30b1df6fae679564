// A program that trains a model, and kills itself where its arguments say: rabit_recovers local|lazy RANK,VERSION,CALL,ATTEMPT ...
// It prints its process at its start, and at its end that, the model's bits and how often it prepared an input.
#include <herringbone/rabit.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

constexpr int kVersions = 4;
constexpr std::size_t kLength = 5000;

int arguments_count, call_number, prepared;
char **arguments;

struct Model : rabit::Serializable {
    std::vector<double> values;
    void Load(rabit::Stream *from) override { rabit::utils::Check(from->Read(&values), "the model has ended"); }
    void Save(rabit::Stream *to) const override { to->Write(values); }
};

// The process ends here, if an argument says so.
void come_to_call() {
    const char *attempt = std::getenv("DMLC_NUM_ATTEMPT");
    const std::string here = std::to_string(rabit::GetRank()) + "," + std::to_string(rabit::VersionNumber()) + "," +
        std::to_string(call_number++) + "," + (attempt != nullptr ? attempt : "0");
    for (int at = 2; at < arguments_count; at++) {
        if (here == arguments[at]) raise(SIGKILL);
    }
}

void add(double &to, const double &from) { to = to / 3 + from; }

void train(Model &model, Model &local) {
    const int rank = rabit::GetRank(), size = rabit::GetWorldSize();
    std::vector<double> sums(kLength);
    come_to_call();
    rabit::Allreduce<rabit::op::Sum>(sums.data(), sums.size(), [&] {
        prepared++;
        for (std::size_t at = 0; at < kLength; at++) sums[at] = (model.values[at] + rank) / 3 + local.values[at];
    });
    come_to_call();
    double scale = 0.7 + rabit::VersionNumber();
    const int root = rabit::VersionNumber() % size;
    if (rank != root) scale = 0;
    rabit::Broadcast(&scale, sizeof scale, root);
    come_to_call();
    // Slices of different lengths: the last rank gives the rest.
    const std::size_t part = kLength / static_cast<std::size_t>(size + 1), begin = part * static_cast<std::size_t>(rank);
    const std::size_t count = rank == size - 1 ? kLength - begin : part;
    const std::size_t previous = rank == 0 ? kLength - part * static_cast<std::size_t>(size - 1) : part;
    std::vector<double> all(kLength, -1);
    for (std::size_t at = begin; at < begin + count; at++) all[at] = sums[at] * scale;
    rabit::Allgather(all.data(), all.size(), begin, count, previous);
    come_to_call();
    std::vector<double> folded(10);
    rabit::Reducer<double, add>().Allreduce(folded.data(), folded.size(), [&] {
        prepared++;
        folded.assign(10, 0.1 * (rank + 1) + local.values[0]);
    });
    come_to_call();
    for (std::size_t at = 0; at < kLength; at++) {
        model.values[at] = all[at] / 7 + folded[at % 10];
        local.values[at] = rank + model.values[at] / 2;
    }
}

std::uint64_t bits(const Model &model) {
    std::string bytes;
    rabit::utils::MemoryBufferStream stream(&bytes);
    model.Save(&stream);
    std::uint64_t hash = 0xcbf29ce484222325;
    for (char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    return hash;
}

}  // namespace

int main(int argc, char *argv[]) {
    arguments_count = argc;
    arguments = argv;
    const bool is_lazy = argc > 1 && std::string(argv[1]) == "lazy";
    std::printf("start %d\n", getpid());
    std::fflush(stdout);
    rabit::Init(argc, argv);
    // Calls before the checkpoint is loaded are known by their places.
    std::string order = rabit::GetRank() == 0 ? "forwards" : "";
    rabit::Broadcast(&order, 0);
    int largest = rabit::GetRank();
    rabit::Allreduce<rabit::op::Max>(&largest, 1);
    rabit::utils::Check(order == "forwards" && largest == rabit::GetWorldSize() - 1, "calls before a version");
    Model model, local;
    const int version = rabit::LoadCheckPoint(&model, is_lazy ? nullptr : &local);
    if (version == 0) model.values.assign(kLength, 1);
    if (version == 0 || is_lazy) local.values.assign(kLength, 1);
    while (rabit::VersionNumber() < kVersions) {
        call_number = 0;
        train(model, local);
        if (is_lazy) {
            local.values.assign(kLength, 1);
            rabit::LazyCheckPoint(&model);
        } else {
            rabit::CheckPoint(&model, &local);
        }
    }
    std::printf("end %d %d %016llx %016llx\n", getpid(), prepared, static_cast<unsigned long long>(bits(model)),
        static_cast<unsigned long long>(bits(local)));
    std::fflush(stdout);
    rabit::Finalize();
    return 0;
}
