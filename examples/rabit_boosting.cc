// Boosted trees of one split each, learned as gradient boosting does it: a program that continues where it was if processes are lost.
//
//     make capi
//     c++ -O2 -std=c++11 examples/rabit_boosting.cc -o boosting -Itarget/capi/include -Ltarget/capi/lib -lherringbone
//     LD_LIBRARY_PATH=target/capi/lib herringbone launch -n 4 --max-attempts 9 -- ./boosting testdata/digits/digits.txt
//
// Kill any of its processes, also several: the program ends with the same trees. Over an MPI, without Herringbone's library, it finds
// these trees, too, but nothing is recovered:
//
//     mpicxx -O2 -DHERRINGBONE_RABIT_MPI -Icrates/capi/include examples/rabit_boosting.cc -o boosting
//     mpirun -n 4 ./boosting testdata/digits/digits.txt
#include <herringbone/rabit.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>

namespace {

constexpr int kPixels = 64, kInks = 17, kRounds = 300;
// How much of each tree's answer is taken.
constexpr double kRate = 0.3;
// Derivatives are summed as integers, in steps of this size. So the trees do not depend on how many ranks there are, nor on the order
// in which their sums are added.
constexpr double kStep = 1.0 / (1LL << 40);

// A handwritten digit. The program learns whether it is even.
struct Digit {
    int inks[kPixels];
    bool is_even;
};

// The sums of the loss's first and second derivatives, for each pixel and ink.
struct Sums {
    long long first, second;
};
static_assert(sizeof(Sums) == 2 * sizeof(long long), "an all-reduce takes them as so many numbers");

// A tree with one split: what it adds to the score of a digit with at most so much ink in a pixel, and of others.
struct Stump {
    std::int32_t pixel, ink;
    double light, dark;

    double answer(const Digit &digit) const { return digit.inks[pixel] <= ink ? light : dark; }
};

// What a checkpoint keeps.
struct Trees : rabit::Serializable {
    std::vector<Stump> stumps;

    void Load(rabit::Stream *from) override { rabit::utils::Check(from->Read(&stumps), "the checkpoint has ended"); }
    void Save(rabit::Stream *to) const override { to->Write(stumps); }

    double score(const Digit &digit) const {
        double score = 0;
        for (const Stump &stump : stumps) score += stump.answer(digit);
        return score;
    }
};

// A tree, and by how much it lowers the loss.
struct Split {
    Stump stump;
    double gain;
};

// Takes the better one. Of equal ones the first pixel wins, so that the order of ranks does not matter.
void take_better(Split &to, const Split &from) {
    if (from.gain > to.gain || (from.gain == to.gain && from.stump.pixel < to.stump.pixel)) to = from;
}

// Every `size`-th digit of the file. One digit a line: a character for each pixel, and the digit.
std::vector<Digit> digits_of(const char *path, int rank, int size) {
    std::ifstream file(path);
    rabit::utils::Check(file.is_open(), "%s cannot be read: pass a file such as testdata/digits/digits.txt", path);
    std::vector<Digit> digits;
    std::string image;
    int number;
    for (int line = 0; file >> image >> number; line++) {
        rabit::utils::Check(image.size() == kPixels, "line %d of %s is no digit", line + 1, path);
        if (line % size != rank) continue;
        Digit digit;
        for (int pixel = 0; pixel < kPixels; pixel++) digit.inks[pixel] = std::stoi(image.substr(pixel, 1), nullptr, kInks);
        digit.is_even = number % 2 == 0;
        digits.push_back(digit);
    }
    return digits;
}

void add_up(const std::vector<Digit> &digits, const std::vector<double> &scores, std::vector<Sums> &sums) {
    sums.assign(sums.size(), Sums{0, 0});
    for (std::size_t at = 0; at < digits.size(); at++) {
        const double likely = 1 / (1 + std::exp(-scores[at]));
        const long long first = std::llround((likely - digits[at].is_even) / kStep);
        const long long second = std::llround(likely * (1 - likely) / kStep);
        for (int pixel = 0; pixel < kPixels; pixel++) {
            Sums &sum = sums[pixel * kInks + digits[at].inks[pixel]];
            sum.first += first;
            sum.second += second;
        }
    }
}

// The best split of a pixel.
Split best_split(const Sums *inks, int pixel) {
    Sums all{0, 0}, light{0, 0};
    for (int ink = 0; ink < kInks; ink++) all = Sums{all.first + inks[ink].first, all.second + inks[ink].second};
    const auto answer = [](const Sums &sum) { return -(sum.first * kStep) / (sum.second * kStep + 1); };
    Split best{Stump{pixel, 0, 0, 0}, -1};
    for (int ink = 0; ink < kInks - 1; ink++) {
        light = Sums{light.first + inks[ink].first, light.second + inks[ink].second};
        const Sums dark{all.first - light.first, all.second - light.second};
        const double gain = -(light.first * answer(light) + dark.first * answer(dark)) * kStep;
        if (gain > best.gain) best = Split{Stump{pixel, ink, kRate * answer(light), kRate * answer(dark)}, gain};
    }
    return best;
}

}  // namespace

int main(int argc, char *argv[]) {
    rabit::Init(argc, argv);
    const int rank = rabit::GetRank(), size = rabit::GetWorldSize();
    rabit::utils::Check(argc > 1, "which digits? testdata/digits/digits.txt, for example");
    // After each tree, so that there is time to kill a process.
    const std::chrono::milliseconds pause(argc > 2 ? std::stoi(argv[2]) : 0);

    // Each rank looks at its own digits.
    const std::vector<Digit> digits = digits_of(argv[1], rank, size);
    Trees trees;
    rabit::LoadCheckPoint(&trees);
    std::vector<double> scores;
    for (const Digit &digit : digits) scores.push_back(trees.score(digit));

    while (rabit::VersionNumber() < kRounds) {
        std::vector<Sums> sums(kPixels * kInks);
        // If the others have the sums already, they are not computed.
        rabit::Allreduce<rabit::op::Sum>(&sums[0].first, 2 * sums.size(), [&] { add_up(digits, scores, sums); });

        // Each rank looks for the best split of its own pixels, and all take the best of these.
        Split best{Stump{kPixels, 0, 0, 0}, -1};
        rabit::Reducer<Split, take_better>().Allreduce(&best, 1, [&] {
            for (int pixel = rank; pixel < kPixels; pixel += size) take_better(best, best_split(&sums[pixel * kInks], pixel));
        });
        trees.stumps.push_back(best.stump);
        for (std::size_t at = 0; at < digits.size(); at++) scores[at] += best.stump.answer(digits[at]);
        rabit::CheckPoint(&trees);
        if (rank == 0 && rabit::VersionNumber() % 10 == 0) rabit::TrackerPrintf("tree %d of %d", rabit::VersionNumber(), kRounds);
        std::this_thread::sleep_for(pause);
    }

    unsigned long right[2] = {0, digits.size()};
    for (std::size_t at = 0; at < digits.size(); at++) right[0] += (scores[at] > 0) == digits[at].is_even;
    rabit::Allreduce<rabit::op::Sum>(right, 2);
    std::uint64_t digest = 0xcbf29ce484222325;  // FNV-1a
    std::string bytes;
    rabit::utils::MemoryBufferStream stream(&bytes);
    trees.Save(&stream);
    for (unsigned char byte : bytes) digest = (digest ^ byte) * 0x100000001b3;
    std::printf("%.1f %% of the digits are known as even or odd; digest %016llx\n", 100.0 * right[0] / right[1],
        static_cast<unsigned long long>(digest));
    std::fflush(stdout);
    rabit::Finalize();
    return 0;
}
