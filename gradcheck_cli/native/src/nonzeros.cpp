#include "nonzeros.h"

#include <algorithm>
#include <vector>

namespace gradcheck {
namespace {

constexpr Index bits = 64;  // of a word

// The colors of the rows that each column has met, as bits of words that lie side by side.
struct Met {
    Index columns, words = 1;
    std::vector<std::uint64_t> taken;

    explicit Met(Index count) : columns(count), taken(static_cast<std::size_t>(count)) {}

    std::uint64_t *of(Index column) { return taken.data() + column * words; }

    // The first color that none of the columns has met.
    Index free(const std::int32_t *first, const std::int32_t *last) {
        for (Index word = 0; word < words; ++word) {
            std::uint64_t met = 0;
            for (const std::int32_t *column = first; column != last; ++column)
                met |= of(*column)[word];
            for (Index bit = 0; ~met != 0 && bit < bits; ++bit)
                if ((met >> bit & 1) == 0)
                    return bits * word + bit;
        }
        return bits * words;
    }

    void widen() {
        std::vector<std::uint64_t> wider(taken.size() + static_cast<std::size_t>(columns));
        for (Index column = 0; column < columns; ++column)
            std::copy_n(of(column), words, wider.data() + column * (words + 1));
        taken.swap(wider);
        ++words;
    }
};

}  // namespace

bool first_free(const Nonzeros &nonzeros, Index most, Index look, Index longest, std::int64_t *colors) {
    Met met(nonzeros.columns);
    Index looked = 0;
    for (Index row = 0; row < nonzeros.rows; ++row) {
        const std::int32_t *first = nonzeros.column + nonzeros.starts[row], *last = nonzeros.column + nonzeros.starts[row + 1];
        const Index color = met.free(first, last);
        looked += look + (last - first) * met.words;
        if (color >= most || looked > longest)
            return false;
        if (color >= bits * met.words)
            met.widen();
        for (const std::int32_t *column = first; column != last; ++column)
            met.of(*column)[color / bits] |= std::uint64_t(1) << color % bits;
        colors[row] = color;
    }
    return true;
}

void by_column(const Nonzeros &nonzeros, std::int32_t *row, std::int32_t *column) {
    std::vector<Index> next(static_cast<std::size_t>(nonzeros.columns) + 1);
    for (Index i = 0; i < nonzeros.starts[nonzeros.rows]; ++i)
        ++next[static_cast<std::size_t>(nonzeros.column[i]) + 1];
    for (std::size_t i = 1; i < next.size(); ++i)
        next[i] += next[i - 1];
    for (Index i = 0; i < nonzeros.rows; ++i)
        for (Index at = nonzeros.starts[i]; at < nonzeros.starts[i + 1]; ++at) {
            const Index to = next[static_cast<std::size_t>(nonzeros.column[at])]++;
            row[to] = static_cast<std::int32_t>(i);
            column[to] = nonzeros.column[at];
        }
}

}  // namespace gradcheck
