// Exact Top-K of float32 vectors, for XLA's CPU programs: the K entries of largest magnitude, ties to the lowest index,
// in ascending order of index. It does so for a vector, or for a row of several to which an update is added, and in which
// only what is not among them is left.
//
// Magnitudes are compared as the 31 bits of |x|, which order as the numbers do: infinities are above all numbers and
// NaNs above infinities. So any input has exactly K winners, and nothing depends on how denormals are rounded.
//
// A first pass over the vector counts the patterns above a range that a sample suggests, and takes out those within.
// Where the vector is short, or the sample misled, the range is that of the first digit which a count of all entries
// shows. The K-th largest pattern is found among those taken out by radix select, a digit at a time from the top, and a
// second pass tells the entries from it on. src/fedsgm/core/topk.py has the same in JAX, to the bit.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "together.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using fedsgm::kWorthIt;
using fedsgm::Together;

// Compiled twice, where a library can choose when it is loaded: for any processor, and for those of the last ten years.
#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12 && !defined(__clang__)
#define FEDSGM_CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#define FEDSGM_INLINE inline __attribute__((always_inline))
#else
#define FEDSGM_CLONES
#define FEDSGM_INLINE inline
#endif

namespace {

constexpr int32_t kBins = 1 << 11;  // of a digit
constexpr int32_t kMost = 0x7fffffff;
constexpr int64_t kLong = 1 << 16, kSample = 2048;
constexpr int kMostParts = 16;
constexpr int64_t kSmall = 512;  // up to here, clearing and reading a histogram would take longer than comparing
constexpr int64_t kBlock = 64;
constexpr int64_t kGathered = 4, kTold = 8;  // of a block at once: the processor guesses once whether there are more

inline int32_t Magnitude(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & kMost;
}

inline void Increase(float* x, const float* update, int64_t size) {
  for (int64_t i = 0; i < size; ++i) x[i] += update[i];
}

// An entry that was taken is zero, or a NaN if it was no number.
inline void Take(float* row, int64_t i) { row[i] -= row[i]; }

// Small vectors: magnitude and index as one number, of which no two are equal.
void SelectSmall(const float* x, int64_t d, int64_t k, int32_t* indices, float* values) {
  uint64_t keys[kSmall], sorted[kSmall];
  for (int64_t i = 0; i < d; ++i) keys[i] = sorted[i] = uint64_t(Magnitude(x[i])) << 32 | uint32_t(~i);
  std::nth_element(sorted, sorted + (k - 1), sorted + d, [](uint64_t a, uint64_t b) { return a > b; });
  const uint64_t least = sorted[k - 1];
  int64_t n = 0;
  for (int64_t i = 0; i < d && n < k; ++i) {
    indices[n] = int32_t(i);
    values[n] = x[i];
    n += keys[i] >= least;
  }
}

// Patterns, both ends included; the one that is looked for is the `rank`-th largest of them, counted from 1.
struct Range {
  int32_t low, high;
  int64_t rank;

  // How far their distance from the lowest is shifted, to have its first digit.
  int Shift() const {
    int shift = 0;
    while ((high - low) >> shift >= kBins) ++shift;
    return shift;
  }

  // To those with the digit that it has, where of each digit there are so many.
  void Narrow(const uint32_t* counts, int shift) {
    int32_t digit = (high - low) >> shift;
    while (digit > 0 && counts[digit] < rank) rank -= counts[digit--];
    low += digit << shift;
    high = int32_t(std::min<int64_t>(high, int64_t{low} + (int64_t{1} << shift) - 1));
  }
};

// Three standard errors on both sides of the pattern that so large a share of a sample is above.
Range Sampled(const float* x, const float* update, int64_t d, int64_t k) {
  int32_t sample[kSample];
  for (int64_t i = 0; i < kSample; ++i) {
    const int64_t place = i * d / kSample;
    sample[i] = Magnitude(update == nullptr ? x[place] : x[place] + update[place]);
  }
  const double share = double(k) / double(d), error = std::sqrt(kSample * share * (1 - share));
  const int64_t last = std::min(kSample, int64_t(kSample * share + 3 * error) + 1);
  const int64_t first = int64_t(kSample * share - 3 * error) - 1;
  std::nth_element(sample, sample + (last - 1), sample + kSample, std::greater<>());
  const int32_t low = sample[last - 1];
  if (first < 1) return {low, kMost, k};
  std::nth_element(sample, sample + (first - 1), sample + last, std::greater<>());
  return {low, sample[first - 1], k};
}

// The patterns with the same first digit. Digits are counted in four tables: neighbours often share one, and adding to a
// number that was just stored would wait for it.
Range Counted(const float* x, int64_t d, int64_t k) {
  uint32_t tables[4][kBins] = {}, counts[kBins];
  Range range{0, kMost, k};
  const int shift = range.Shift();
  int64_t i = 0;
  for (; i + 4 <= d; i += 4)
    for (int lane = 0; lane < 4; ++lane) ++tables[lane][Magnitude(x[i + lane]) >> shift];
  for (; i < d; ++i) ++tables[0][Magnitude(x[i]) >> shift];
  for (int bin = 0; bin < kBins; ++bin) counts[bin] = tables[0][bin] + tables[1][bin] + tables[2][bin] + tables[3][bin];
  range.Narrow(counts, shift);
  return range;
}

// The pattern that is looked for, of `n` which are all within the range; the rank is that among those equal to it.
std::pair<int32_t, int64_t> Found(int32_t* some, int64_t n, Range range) {
  while (range.low < range.high) {
    uint32_t counts[kBins] = {};
    const int shift = range.Shift();
    for (int64_t j = 0; j < n; ++j) ++counts[(some[j] - range.low) >> shift];
    range.Narrow(counts, shift);
    const uint32_t width = range.high - range.low;
    n = std::copy_if(some, some + n, some, [&](int32_t p) { return uint32_t(p - range.low) <= width; }) - some;
  }
  return {range.low, range.rank};
}

// Which of a block's entries are above a pattern, the first in the lowest bit.
#ifdef __SSE2__
FEDSGM_INLINE uint64_t AboveInBlock(const float* x, int32_t limit) {
  const __m128i than = _mm_set1_epi32(limit), magnitude = _mm_set1_epi32(kMost);
  const auto four = [&](const float* y) {
    return _mm_cmpgt_epi32(_mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(y)), magnitude), than);
  };
  uint64_t word = 0;
  for (int i = 0; i < kBlock; i += 16) {
    const __m128i eight = _mm_packs_epi32(four(x + i), four(x + i + 4));
    const __m128i other = _mm_packs_epi32(four(x + i + 8), four(x + i + 12));
    word |= uint64_t(_mm_movemask_epi8(_mm_packs_epi16(eight, other))) << i;
  }
  return word;
}
#else
FEDSGM_INLINE uint64_t AboveInBlock(const float* x, int32_t limit) {
  uint8_t flags[kBlock];
  for (int i = 0; i < kBlock; ++i) flags[i] = Magnitude(x[i]) > limit;  // in vector instructions
  uint64_t word = 0;
  for (int part = 0; part < kBlock; part += 8) {
    uint64_t eight = 0;
    for (int i = 0; i < 8; ++i) eight |= uint64_t{flags[part + i]} << 8 * i;  // one load, where bytes are in this order
    word |= (eight * 0x0102040810204080u) >> 56 << part;  // a bit of each byte
  }
  return word;
}
#endif

FEDSGM_INLINE uint64_t Above(const float* x, int64_t size, int32_t limit) {
  if (size == kBlock) return AboveInBlock(x, limit);
  uint64_t word = 0;
  for (int64_t i = 0; i < size; ++i) word |= uint64_t{Magnitude(x[i]) > limit} << i;
  return word;
}

// All that are at least so large, in vector instructions.
FEDSGM_INLINE void TakeFrom(float* block, int32_t least) {
  float taken[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) taken[i] = block[i] - block[i];
  for (int64_t i = 0; i < kBlock; ++i) block[i] = Magnitude(block[i]) >= least ? taken[i] : block[i];
}

// A stretch of the vector, the work of one thread.
struct Part {
  int64_t first, last;
  int32_t* within;      // the patterns within the range, with room for `kGathered` more than there are entries
  int64_t many, above;  // how many these are, and how many patterns are above them
  int64_t start, kept;  // of the outcome: where its own begins, and how many entries that has
  int64_t ties;         // how many of these are as small as the least
  bool all_ties;        // whether there are no others as small

  int64_t BlockAt(int64_t at) const { return std::min(kBlock, last - at); }

  // Of x or, if there is a row, which is x then, of that once the update is added to it.
  FEDSGM_CLONES void Gather(const float* x, float* row, const float* update, const Range& range) {
    many = above = 0;
    for (int64_t at = first; at < last; at += kBlock) {
      const int64_t size = BlockAt(at);
      if (update != nullptr) Increase(row + at, update + at, size);
      const uint64_t over = Above(x + at, size, range.high), end = uint64_t{1} << (size - 1);
      uint64_t word = Above(x + at, size, range.low - 1) & ~over;
      int32_t* next = within + many;
      above += __builtin_popcountll(over);
      many += __builtin_popcountll(word);
      do  // what is too much is written over
        for (int i = 0; i < kGathered; ++i, word &= word - 1) *next++ = Magnitude((x + at)[__builtin_ctzll(word | end)]);
      while (word != 0);
    }
  }

  // Its share of the outcome, once the least pattern is known, and how many `more` may be as small.
  void Settle(int32_t least, int64_t begin, int64_t& more) {
    int64_t equal = 0, larger = above;
    for (int64_t j = 0; j < many; ++j) {
      equal += within[j] == least;
      larger += within[j] > least;
    }
    ties = std::min(equal, more);
    all_ties = ties == equal;
    more -= ties;
    start = begin;
    kept = larger + ties;
  }

  FEDSGM_CLONES void Tell(const float* x, int32_t least, int32_t* indices, float* values, float* row) const {
    int64_t n = start, some = ties;
    for (int64_t at = first; at < last; at += kBlock) {
      const int64_t size = BlockAt(at);
      uint64_t word = Above(x + at, size, least - 1);
      if (!all_ties)
        for (uint64_t equal = word & ~Above(x + at, size, least); equal != 0; equal &= equal - 1)
          if (some-- <= 0) word ^= equal & -equal;
      const uint64_t end = uint64_t{1} << (size - 1);
      const int64_t after = n + __builtin_popcountll(word), at_once = after + kTold <= start + kept ? kTold : 1;
      for (uint64_t rest = word; rest != 0;)  // what is too much is written over
        for (int64_t i = 0; i < at_once; ++i, ++n, rest &= rest - 1) {
          const int64_t place = at + __builtin_ctzll(rest | end);
          indices[n] = int32_t(place);
          values[n] = x[place];
        }
      n = after;
      if (row == nullptr) continue;
      if (all_ties && size == kBlock)
        TakeFrom(row + at, least);
      else
        for (; word != 0; word &= word - 1) Take(row, at + __builtin_ctzll(word));
    }
  }
};

// Memory that a thread keeps, since the pages of new memory cost as much as a pass over them.
class Kept {
 public:
  // Null if there is none.
  int32_t* Get(int64_t size) {
    if (size > size_) {
      data_.reset(new (std::nothrow) int32_t[size]);
      size_ = data_ == nullptr ? 0 : size;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<int32_t[]> data_;
  int64_t size_ = 0;
};

// 1 <= k <= d. Where there is a row, it is x, the update is added to it, and what is told taken from it. False if there
// is no memory.
bool Select(const float* x, int64_t d, int64_t k, ffi::ThreadPool& pool, int32_t* indices, float* values,
            float* row = nullptr, const float* update = nullptr) {
  thread_local Kept kept_within, kept_some;
  Part parts[kMostParts];
  const int many = pool.num_threads() < 2 ? 1 : int(std::clamp<int64_t>(d / kWorthIt, 1, kMostParts));
  const int64_t length = (d / many + kBlock - 1) / kBlock * kBlock;
  int32_t* room = kept_within.Get(d + many * kGathered);
  if (room == nullptr) return false;
  for (int p = 0; p < many; ++p) {
    parts[p].first = p * length;
    parts[p].last = p == many - 1 ? d : (p + 1) * length;
    parts[p].within = room + p * (length + kGathered);
  }

  Range range{};
  int64_t within, above;
  const auto gather = [&] {
    Together(many, pool, [&](int p) { parts[p].Gather(x, row, update, range); });
    update = nullptr;
    within = above = 0;
    for (int p = 0; p < many; ++p) {
      within += parts[p].many;
      above += parts[p].above;
    }
    return above < k && k <= above + within;
  };
  bool found = false;
  if (d >= kLong) {
    range = Sampled(x, update, d, k);
    found = gather();
    range.rank = k - above;
  } else if (update != nullptr) {
    Increase(row, update, d);
    update = nullptr;
  }
  if (!found) {
    range = Counted(x, d, k);
    gather();
  }

  int32_t* some = kept_some.Get(within);
  if (some == nullptr) return false;
  int32_t* end = some;
  for (int p = 0; p < many; ++p) end = std::copy(parts[p].within, parts[p].within + parts[p].many, end);
  auto [least, ties] = Found(some, within, range);
  int64_t start = 0;
  for (int p = 0; p < many; ++p) {
    parts[p].Settle(least, start, ties);
    start += parts[p].kept;
  }
  Together(many, pool, [&, least = least](int p) { parts[p].Tell(x, least, indices, values, row); });
  return true;
}

ffi::Error NoMemory() { return ffi::Error(ffi::ErrorCode::kResourceExhausted, "fedsgm_topk: no memory"); }

// Over all leading dimensions; K is the last of the results.
ffi::Error TopK(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::S32> indices,
                ffi::ResultBuffer<ffi::F32> values) {
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
    else if (!Select(row, d, k, pool, row_indices, row_values))
      return NoMemory();
  }
  return ffi::Error::Success();
}

// Of the row `at` with the update added; what is left of it takes its place. The last result may be `rows` itself.
ffi::Error TopKOfRow(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> rows, ffi::Buffer<ffi::S32> at,
                     ffi::Buffer<ffi::F32> update, ffi::ResultBuffer<ffi::S32> indices,
                     ffi::ResultBuffer<ffi::F32> values, ffi::ResultBuffer<ffi::F32> left) {
  const int64_t d = update.element_count(), k = indices->element_count(), all = rows.element_count();
  if (k < 1 || k > d || d > INT32_MAX || all % d != 0 || at.element_count() != 1 ||
      int64_t(values->element_count()) != k || int64_t(left->element_count()) != all)
    return ffi::Error::InvalidArgument("fedsgm_topk_of_row: wrong shapes");
  const int64_t place = at.typed_data()[0];
  if (place < 0 || place >= all / d) return ffi::Error::InvalidArgument("fedsgm_topk_of_row: there is no such row");
  if (left->typed_data() != rows.typed_data()) std::copy_n(rows.typed_data(), all, left->typed_data());
  float* row = left->typed_data() + place * d;
  if (d > kSmall) {
    const bool done = Select(row, d, k, pool, indices->typed_data(), values->typed_data(), row, update.typed_data());
    return done ? ffi::Error::Success() : NoMemory();
  }
  Increase(row, update.typed_data(), d);
  SelectSmall(row, d, k, indices->typed_data(), values->typed_data());
  for (int64_t j = 0; j < k; ++j) Take(row, indices->typed_data()[j]);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedsgm_topk, TopK,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedsgm_topk_of_row, TopKOfRow,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
