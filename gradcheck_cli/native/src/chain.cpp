#include "chain.h"

#include <algorithm>

#include "instruction_set.h"
#include "scratch.h"

namespace gradcheck {
namespace {

constexpr Index cached = 32 << 10;  // bytes that the blocks of all values take together: those of a small first cache
constexpr Index shortest = 256, longest = 1024;  // numbers of a block: it has to be worth a call for each operation

// An axis of the results with the step, in numbers, that each array takes along it.
struct Steps {
    Index count;
    std::vector<Index> of;
};

// The axes of a chain's results without those of one, and with neighbours made one where all arrays allow it.
std::vector<Steps> axes_of(const Chain &chain) {
    const View &like = chain.arrays.back();
    std::vector<Steps> axes;
    for (Index axis = 0; axis < like.rank; ++axis) {
        if (like.size(axis) == 1)
            continue;
        Steps next{like.size(axis), {}};
        for (const View &array : chain.arrays) {
            const Index own = axis - (like.rank - array.rank);
            next.of.push_back(own < 0 || array.size(own) == 1 ? 0 : array.stride(own));
        }
        bool follows = !axes.empty();
        for (std::size_t i = 0; follows && i < next.of.size(); ++i)
            follows = axes.back().of[i] == next.of[i] * next.count;
        if (follows) {
            axes.back().count *= next.count;
            axes.back().of = std::move(next.of);
        } else {
            axes.push_back(std::move(next));
        }
    }
    return axes;
}

Steps taken(std::vector<Steps> &axes, std::size_t arrays) {
    if (axes.empty())
        return {1, std::vector<Index>(arrays, 0)};
    Steps last = std::move(axes.back());
    axes.pop_back();
    return last;
}

// Runs the code of a chain on blocks of some rows and columns of the last two axes.
template <class T> class Blocks {
  public:
    explicit Blocks(const Chain &chain) : chain_(chain), outer_(axes_of(chain)) {
        const std::size_t arrays = chain.arrays.size();
        columns_ = taken(outer_, arrays);
        rows_ = taken(outer_, arrays);
        const Index room = std::clamp(cached / static_cast<Index>(sizeof(T)) / chain.values(), shortest, longest);
        width_ = std::min(columns_.count, room);
        height_ = width_ < columns_.count ? 1 : std::min(rows_.count, std::max<Index>(1, room / width_));
        size_ = width_ * height_;
        memory_ = static_cast<T *>(scratch(Slot::left, static_cast<std::size_t>(chain.values() * size_) * sizeof(T)));
        for (Index value = 0; value < chain.values(); ++value)
            at_.push_back(memory_ + value * size_);
        for (const View &array : chain.arrays)
            first_.push_back(array.at<T>());
    }

    void run() {
        std::vector<Index> turn(outer_.size(), 0);
        do {
            for (Index column = 0; column < columns_.count; column += width_)
                run_rows(column, std::min(width_, columns_.count - column));
        } while (next(turn));
    }

  private:
    // Moves to the next place along the outer axes; false after the last one.
    bool next(std::vector<Index> &turn) {
        for (std::size_t axis = outer_.size(); axis-- > 0;) {
            const bool more = ++turn[axis] < outer_[axis].count;
            for (std::size_t i = 0; i < first_.size(); ++i)
                first_[i] += outer_[axis].of[i] * (more ? 1 : 1 - outer_[axis].count);
            if (more)
                return true;
            turn[axis] = 0;
        }
        return false;
    }

    void run_rows(Index column, Index width) {
        for (Index row = 0; row < rows_.count; row += height_) {
            const Index height = std::min(height_, rows_.count - row);
            for (Index i = 0; i < chain_.operands; ++i)
                if (row == 0 || rows_.of[at(i)] != 0)  // what all rows share is there already
                    load(i, row, column, width, height);
            for (std::size_t i = at(chain_.operands); i < first_.size(); ++i)
                at_[i] = first_[i] + row * rows_.of[i] + column * columns_.of[i];
            operate(width * height);
        }
    }

    // Points to a block of an operand, or copies it where its numbers are not side by side.
    void load(Index operand, Index row, Index column, Index width, Index height) {
        const std::size_t i = at(operand);
        const Index down = rows_.of[i], along = columns_.of[i];
        T *from = first_[i] + row * down + column * along;
        const bool dense = (along == 1 || width == 1) && (height == 1 || down == width);
        at_[i] = dense ? from : memory_ + operand * size_;
        if (dense)
            return;
        for (Index r = 0; r < (down == 0 ? height_ : height); ++r, from += down)
            if (along == 1)
                std::copy(from, from + width, at_[i] + r * width);
            else if (along == 0)
                std::fill(at_[i] + r * width, at_[i] + (r + 1) * width, *from);
            else
                for (Index c = 0; c < width; ++c)
                    at_[i][r * width + c] = from[c * along];
    }

    void operate(Index count) {
        const auto kernel = instruction_set().of<T>().operate;
        for (const Instruction &one : chain_.code)
            kernel(one.operation, at_[one.to], at_[one.left], at_[one.right], at_[one.third], count);
    }

    static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

    const Chain &chain_;
    std::vector<Steps> outer_;
    Steps columns_, rows_;
    Index width_, height_, size_;
    T *memory_;
    std::vector<T *> at_, first_;  // the block of each value, and where each array begins
};

}  // namespace

const char *flaw(const Chain &chain) {
    const Index arrays = static_cast<Index>(chain.arrays.size());
    if (chain.operands < 1 || chain.operands >= arrays || chain.values() > 255)
        return "a chain needs operands and results, at most 255 values in all";
    const View &like = chain.arrays.back();
    for (Index i = 0; i < arrays; ++i) {
        const View &array = chain.arrays[static_cast<std::size_t>(i)];
        if (array.complex)
            return "a chain takes real numbers";
        Index dense = 1;
        for (Index axis = 1; axis <= std::max(array.rank, like.rank); ++axis) {
            const Index own = axis <= array.rank ? array.size(-axis) : 1, whole = axis <= like.rank ? like.size(-axis) : 0;
            if (own != whole && (own != 1 || i >= chain.operands || axis > like.rank))
                return "the operands of a chain have to broadcast over its results";
            if (i >= chain.operands && own != 1 && array.stride(-axis) != dense)
                return "the results of a chain have to be dense";
            dense *= own;
        }
    }
    for (const Instruction &one : chain.code) {
        const Index to = one.to, most = std::max({one.left, one.right, one.third});
        if (static_cast<int>(one.operation) >= operations || to < chain.operands || std::max(to, most) >= chain.values())
            return "an instruction of a chain names what is not there";
    }
    return "";
}

template <class T> void run(const Chain &chain) {
    for (Index axis = 0; axis < chain.arrays.back().rank; ++axis)
        if (chain.arrays.back().size(axis) == 0)
            return;
    Blocks<T>(chain).run();
}

template void run<float>(const Chain &);
template void run<double>(const Chain &);

}  // namespace gradcheck
