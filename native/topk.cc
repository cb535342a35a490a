// Exact Top-K of float32 vectors, for XLA's CPU programs: the K entries of largest magnitude, ties to the lowest index,
// in ascending order of index.
//
// Magnitudes are compared as the 31 bits of |x|, which order as the numbers do: infinities are above all numbers and
// NaNs above infinities. So any input has exactly K winners, and nothing depends on how denormals are rounded.
//
// The K-th largest pattern is found by radix select, a digit at a time from the top: two passes over the vector, the
// rest is work on the few entries that share the first digit, or are above it. src/fedsgm/core/topk.py has the same in
// JAX, to the bit.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int kDigits = 3;
constexpr int kShift[kDigits] = {20, 10, 0};  // the sign is none of a digit's bits: the first has 11, the others 10
constexpr uint32_t kBins = 2048;
constexpr uint32_t kMask[kDigits] = {2047, 1023, 1023};
constexpr int64_t kSmall = 512;  // up to here, clearing and reading a histogram would take longer than comparing

inline uint32_t Magnitude(const float* x, int64_t i) {
  uint32_t bits;
  std::memcpy(&bits, x + i, sizeof bits);
  return bits & 0x7fffffffu;
}

// The bin with the `rank`-th largest entry, counted from 1; `rank` becomes the entry's rank within that bin.
uint32_t FindBin(const uint32_t* counts, int64_t& rank) {
  uint32_t bin = kBins - 1;
  while (bin > 0 && counts[bin] < rank) rank -= counts[bin--];
  return bin;
}

// Small vectors: magnitude and index as one number, of which no two are equal.
void SelectSmall(const float* x, int64_t d, int64_t k, int32_t* indices, float* values) {
  uint64_t keys[kSmall], sorted[kSmall];
  for (int64_t i = 0; i < d; ++i) keys[i] = sorted[i] = uint64_t{Magnitude(x, i)} << 32 | uint32_t(~i);
  std::nth_element(sorted, sorted + (k - 1), sorted + d, [](uint64_t a, uint64_t b) { return a > b; });
  const uint64_t least = sorted[k - 1];
  int64_t n = 0;
  for (int64_t i = 0; i < d && n < k; ++i) {
    indices[n] = int32_t(i);
    values[n] = x[i];
    n += keys[i] >= least;
  }
}

// The first digit of every entry is counted in four tables: neighbours often share a digit, and adding to a number that
// was just stored would wait for it.
void CountFirst(const float* x, int64_t d, uint32_t* counts) {
  uint32_t tables[4][kBins] = {};
  int64_t i = 0;
  for (; i + 4 <= d; i += 4)
    for (int lane = 0; lane < 4; ++lane) ++tables[lane][Magnitude(x, i + lane) >> kShift[0]];
  for (; i < d; ++i) ++tables[0][Magnitude(x, i) >> kShift[0]];
  for (uint32_t bin = 0; bin < kBins; ++bin)
    counts[bin] = tables[0][bin] + tables[1][bin] + tables[2][bin] + tables[3][bin];
}

// 1 <= k <= d. False if there is no memory.
bool Select(const float* x, int64_t d, int64_t k, int32_t* indices, float* values) {
  uint32_t counts[kBins];
  CountFirst(x, d, counts);
  int64_t rank = k;
  uint32_t prefix = FindBin(counts, rank);

  // Those of the bin and above, in order. One place more than they take, so that every entry can be stored and the
  // place of one that is none of them is taken by the next: no branch that the processor would have to guess.
  const int64_t m = k - rank + counts[prefix];
  std::unique_ptr<int32_t[]> list(new (std::nothrow) int32_t[m + 1]);
  if (list == nullptr) return false;
  const uint32_t floor = prefix << kShift[0];
  int64_t n = 0;
  for (int64_t i = 0; i < d; ++i) {
    list[n] = int32_t(i);
    n += Magnitude(x, i) >= floor;
  }

  for (int digit = 1; digit < kDigits; ++digit) {
    std::fill(counts, counts + kBins, 0);
    for (int64_t j = 0; j < m; ++j) {
      const uint32_t bits = Magnitude(x, list[j]);
      if (bits >> kShift[digit - 1] == prefix) ++counts[bits >> kShift[digit] & kMask[digit]];
    }
    prefix = prefix << (kShift[digit - 1] - kShift[digit]) | FindBin(counts, rank);
  }

  // The prefix is now the K-th largest pattern itself, and `rank` of the entries that have it are kept.
  n = 0;
  for (int64_t j = 0; j < m && n < k; ++j) {
    const uint32_t bits = Magnitude(x, list[j]);
    const bool tie = bits == prefix && rank > 0;
    rank -= tie;
    indices[n] = list[j];
    values[n] = x[list[j]];
    n += bits > prefix || tie;
  }
  return true;
}

// Over all leading dimensions; K is the last of the results.
ffi::Error TopK(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::S32> indices, ffi::ResultBuffer<ffi::F32> values) {
  const auto from = x.dimensions(), to = indices->dimensions();
  const bool alike = from.size() > 0 && from.size() == to.size() && std::equal(from.begin(), from.end() - 1, to.begin());
  const int64_t d = alike ? from.back() : 0, k = alike ? to.back() : 0;
  if (k < 1 || k > d || d > INT32_MAX || values->element_count() != indices->element_count())
    return ffi::Error::InvalidArgument("fedsgm_topk: wrong shapes");
  const int64_t batch = int64_t(x.element_count()) / d;
  for (int64_t b = 0; b < batch; ++b) {
    const float* row = x.typed_data() + b * d;
    int32_t* row_indices = indices->typed_data() + b * k;
    float* row_values = values->typed_data() + b * k;
    if (d <= kSmall)
      SelectSmall(row, d, k, row_indices, row_values);
    else if (!Select(row, d, k, row_indices, row_values))
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, "fedsgm_topk: no memory");
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedsgm_topk, TopK,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
