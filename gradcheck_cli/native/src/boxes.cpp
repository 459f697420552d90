#include "boxes.h"

#include <complex>
#include <cstdint>

#include "thread_pool.h"

namespace gradcheck {
namespace {

constexpr double entry = 1;  // multiplications in the time that an entry takes to be copied

bool inside(const Boxes &boxes) {
    for (std::size_t axis = 0; axis < boxes.lengths.size(); ++axis) {
        const Index room = boxes.sizes[axis] - boxes.lengths[axis], *start = boxes.starts[axis];
        if (room < 0)
            return false;
        for (Index p = 0; start && p < boxes.count; ++p)
            if (start[p] < 0 || start[p] > room)
                return false;
    }
    return true;
}

// Lengths and strides of the axes of a box, without those of length 1; lines that follow one another are one.
void walked(const Boxes &boxes, std::vector<Index> &lengths, std::vector<Index> &strides) {
    for (std::size_t axis = 0; axis < boxes.lengths.size(); ++axis) {
        const Index length = boxes.lengths[axis], stride = boxes.strides[axis];
        if (length == 1)
            continue;
        if (!lengths.empty() && strides.back() == length * stride) {
            lengths.back() *= length;
            strides.back() = stride;
        } else {
            lengths.push_back(length);
            strides.push_back(stride);
        }
    }
}

template <class T> struct Copy {
    const std::vector<Index> &lengths, &strides;
    bool back;

    // Copies what lies below an axis; gives the end of its dense part.
    T *below(std::size_t axis, char *tensor, T *dense) const {
        if (axis == lengths.size()) {
            line(tensor, dense, 1, sizeof(T));
            return dense + 1;
        }
        if (axis + 1 == lengths.size()) {
            line(tensor, dense, lengths[axis], strides[axis]);
            return dense + lengths[axis];
        }
        for (Index i = 0; i < lengths[axis]; ++i)
            dense = below(axis + 1, tensor + i * strides[axis], dense);
        return dense;
    }

    void line(char *tensor, T *dense, Index length, Index stride) const {
        if (back)
            for (Index i = 0; i < length; ++i)
                *reinterpret_cast<T *>(tensor + i * stride) = dense[i];
        else
            for (Index i = 0; i < length; ++i)
                dense[i] = *reinterpret_cast<const T *>(tensor + i * stride);
    }
};

template <class T> void copy(const Boxes &boxes, char *tensor, T *dense, bool back) {
    std::vector<Index> lengths, strides;
    walked(boxes, lengths, strides);
    Index volume = 1;
    for (Index length : lengths)
        volume *= length;
    const Copy<T> copying{lengths, strides, back};
    share(boxes.count, deserved(entry * static_cast<double>(boxes.count) * static_cast<double>(volume)), [&](Index first, Index last) {
        for (Index p = first; p < last; ++p) {
            Index offset = 0;
            for (std::size_t axis = 0; axis < boxes.starts.size(); ++axis)
                if (boxes.starts[axis])
                    offset += boxes.starts[axis][p] * boxes.strides[axis];
            copying.below(0, tensor + offset, dense + p * volume);
        }
    });
}

}  // namespace

bool copy_boxes(const Boxes &boxes, Index size, char *tensor, char *dense, bool back) {
    if (!inside(boxes))
        return false;
    switch (size) {
    case 1: copy(boxes, tensor, reinterpret_cast<std::uint8_t *>(dense), back); return true;
    case 4: copy(boxes, tensor, reinterpret_cast<std::uint32_t *>(dense), back); return true;
    case 8: copy(boxes, tensor, reinterpret_cast<std::uint64_t *>(dense), back); return true;
    case 16: copy(boxes, tensor, reinterpret_cast<std::complex<double> *>(dense), back); return true;
    default: return false;
    }
}

}  // namespace gradcheck
