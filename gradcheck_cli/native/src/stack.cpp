#include "stack.h"

#include <algorithm>
#include <utility>

#include "instruction_set.h"
#include "thread_pool.h"

namespace gradcheck {
namespace {

// Each offset twice, the second time `next` further.
std::vector<Index> doubled(const std::vector<Index> &offsets, Index next) {
    std::vector<Index> pairs;
    pairs.reserve(2 * offsets.size());
    for (Index offset : offsets) {
        pairs.push_back(offset);
        pairs.push_back(offset + next);
    }
    return pairs;
}

// Takes the longest axis along which an operand stands still out of `axes`; one of a single step if there is none.
BatchAxis take(std::vector<BatchAxis> &axes, Index BatchAxis::*still) {
    auto best = axes.end();
    for (auto axis = axes.begin(); axis != axes.end(); ++axis)
        if ((*axis).*still == 0 && (best == axes.end() || axis->count > best->count))
            best = axis;
    if (best == axes.end())
        return {1, 0, 0, 0};
    const BatchAxis taken = *best;
    axes.erase(best);
    return taken;
}

Axis axis(const std::vector<Index> &table, Index turns, Index outer) {
    const Index inner = static_cast<Index>(table.size());
    return {inner * turns, inner, table.data(), outer};
}

// Whether the first two positions are neighbours, and so most of the others.
bool side_by_side(const std::vector<Index> &table, Index unit) { return table.size() > 1 && table[1] == table[0] + unit; }

// The longest axis of `axes` along which an operand stands still; 1 if there is none.
Index turns(const std::vector<BatchAxis> &axes, Index BatchAxis::*still) {
    Index longest = 1;
    for (const BatchAxis &axis : axes)
        if (axis.*still == 0)
            longest = std::max(longest, axis.count);
    return longest;
}

// Whether C has too few columns for a vector, or rows that lie side by side.
bool better_turned(const Tables &tables, Pairing pairing, const std::vector<BatchAxis> &batch, Index lanes) {
    const Index unit = pairing == Pairing::none ? 1 : 2;
    const Index m = static_cast<Index>(tables.a_rows.size()) * turns(batch, &BatchAxis::b);
    const Index n = static_cast<Index>(tables.b_columns.size()) * turns(batch, &BatchAxis::a);
    const bool narrow = n < m && (pairing == Pairing::right || pairing == Pairing::both ? 2 : 1) * n < lanes;
    const bool upright = side_by_side(tables.c_rows, unit) && !side_by_side(tables.c_columns, unit);
    return narrow || upright;
}

// Makes it the product of the transposes, transposed.
void turn(Tables &tables, Pairing &pairing, std::vector<BatchAxis> &batch) {
    std::swap(tables.a_rows, tables.b_columns);
    std::swap(tables.a_depth, tables.b_depth);
    std::swap(tables.c_rows, tables.c_columns);
    if (pairing == Pairing::left || pairing == Pairing::right)
        pairing = pairing == Pairing::left ? Pairing::right : Pairing::left;
    for (BatchAxis &axis : batch)
        std::swap(axis.a, axis.b);
}

Index pieces_of(Index size, Index unit) { return (size + unit - 1) / unit; }

// A cut of C into rows x columns rectangles, at least `wanted` if there are as many panels, with short edges.
struct Cut {
    Index rows = 1, columns = 1;
};

Cut cut(Index wanted, Index row_panels, Index column_panels) {
    Cut best;
    double shortest = -1;
    for (Index rows = 1; rows <= std::min(wanted, row_panels); ++rows) {
        const Index columns = std::min(pieces_of(wanted, rows), column_panels);
        const double edges = static_cast<double>(row_panels) / static_cast<double>(rows) +
                             static_cast<double>(column_panels) / static_cast<double>(columns);
        const bool enough = rows * columns >= wanted, had = best.rows * best.columns >= wanted;
        if (shortest < 0 || enough > had || (enough == had && edges < shortest)) {
            best = {rows, columns};
            shortest = edges;
        }
    }
    return best;
}

// The i-th of `parts` parts of `size`, whose edges are multiples of `unit`.
Span part(Index size, Index unit, Index i, Index parts) {
    const Index panels = pieces_of(size, unit);
    return {std::min(size, panels * i / parts * unit), std::min(size, panels * (i + 1) / parts * unit)};
}

}  // namespace

void Tables::pair(Pairing pairing) {
    if (pairing == Pairing::left || pairing == Pairing::both)
        a_rows = doubled(a_rows, 1);
    if (pairing == Pairing::right || pairing == Pairing::both)
        b_columns = doubled(b_columns, 1);
    if (pairing != Pairing::none)
        c_columns = doubled(c_columns, 1);
}

std::vector<BatchAxis> merged(const std::vector<BatchAxis> &axes) {
    std::vector<BatchAxis> result;
    for (const BatchAxis &axis : axes) {
        if (axis.count == 1)
            continue;
        if (!result.empty()) {
            BatchAxis &last = result.back();
            if (last.a == axis.a * axis.count && last.b == axis.b * axis.count && last.c == axis.c * axis.count) {
                last = {last.count * axis.count, axis.a, axis.b, axis.c};
                continue;
            }
        }
        result.push_back(axis);
    }
    return result;
}

Index count(const std::vector<BatchAxis> &axes) {
    Index total = 1;
    for (const BatchAxis &axis : axes)
        total *= axis.count;
    return total;
}

std::vector<Index> steps(Index count, Index stride) {
    std::vector<Index> offsets(static_cast<std::size_t>(count));
    for (Index i = 0; i < count; ++i)
        offsets[static_cast<std::size_t>(i)] = i * stride;
    return offsets;
}

template <class T>
Stack<T> make_stack(Numbers<T> a, Numbers<T> b, T *c, Tables tables, Pairing pairing, std::vector<BatchAxis> batch) {
    if (better_turned(tables, pairing, batch, instruction_set().of<T>().lanes)) {
        turn(tables, pairing, batch);
        std::swap(a, b);
    }
    Stack<T> stack;
    tables.pair(pairing);
    stack.tables = std::move(tables);
    stack.batch = std::move(batch);
    const BatchAxis rows = take(stack.batch, &BatchAxis::b), columns = take(stack.batch, &BatchAxis::a);
    const Tables &t = stack.tables;
    stack.product = {static_cast<Index>(t.a_depth.size()),
                     a,
                     axis(t.a_rows, rows.count, rows.a),
                     t.a_depth.data(),
                     b,
                     t.b_depth.data(),
                     axis(t.b_columns, columns.count, columns.b),
                     c,
                     axis(t.c_rows, rows.count, rows.c),
                     axis(t.c_columns, columns.count, columns.c),
                     join(pairing)};
    return stack;
}

template <class T> void run(const Stack<T> &stack) {
    const Kernels<T> &kernels = instruction_set().of<T>();
    const Product<T> &product = stack.product;
    const Index m = product.a_rows.count, n = product.b_columns.count, repeats = count(stack.batch);
    const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(product.depth);
    const Index helpers = deserved(work * static_cast<double>(repeats));
    const Index wanted = helpers == 1 || repeats >= 4 * helpers ? 1 : pieces_of(helpers, repeats);
    const Cut grid = cut(wanted, pieces_of(m, kernels.height), pieces_of(n, kernels.width));
    const auto rectangle = [&](Index unit) {
        const Span columns = part(n, kernels.width, unit % grid.columns, grid.columns);
        unit /= grid.columns;
        const Span rows = part(m, kernels.height, unit % grid.rows, grid.rows);
        const Place at = place(stack.batch.data(), static_cast<Index>(stack.batch.size()), unit / grid.rows);
        Product<T> one = product;
        one.a = product.a.moved(at.a);
        one.b = product.b.moved(at.b);
        one.c += at.c;
        kernels.packed(one, rows, columns);
    };
    share(repeats * grid.rows * grid.columns, helpers, [&](Index first, Index last) {
        for (Index unit = first; unit < last; ++unit)
            rectangle(unit);
    });
}

template <class T>
void run(const SmallProducts<T> &products, void (*kernel)(const SmallProducts<T> &, Index first, Index last)) {
    const Kernels<T> &kernels = instruction_set().of<T>();
    const Index m = products.m, n = products.n, repeats = products.count;
    const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(products.depth);
    const Index helpers = deserved(work * static_cast<double>(repeats));
    if (repeats >= helpers) {
        share(repeats, helpers, [&](Index first, Index last) { kernel(products, first, last); });
        return;
    }
    const bool wide = n > m;
    const Index row = products.join == Join::none ? 1 : 2, column = products.join == Join::parts ? 2 : 1;
    for_each(helpers, [&](Index i) {
        const Span rows = wide ? Span{0, m} : part(m, kernels.height, i, helpers);
        const Span columns = wide ? part(n, 4 * kernels.width, i, helpers) : Span{0, n};
        SmallProducts<T> some = products;
        some.m = rows.last - rows.first;
        some.n = columns.last - columns.first;
        some.a += rows.first / row * products.a_row;
        some.b = products.b.moved(columns.first / std::max<Index>(1, products.b_unit) * products.b_column);
        some.c += rows.first / row * products.c_row + columns.first * column * products.c_column;
        if (some.n > 0)
            kernel(some, 0, repeats);
    });
}

template Stack<float> make_stack(Numbers<float>, Numbers<float>, float *, Tables, Pairing, std::vector<BatchAxis>);
template Stack<double> make_stack(Numbers<double>, Numbers<double>, double *, Tables, Pairing, std::vector<BatchAxis>);
template void run(const Stack<float> &);
template void run(const Stack<double> &);
template void run(const SmallProducts<float> &, void (*)(const SmallProducts<float> &, Index, Index));
template void run(const SmallProducts<double> &, void (*)(const SmallProducts<double> &, Index, Index));

}  // namespace gradcheck
