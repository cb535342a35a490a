// Exact Top-K of float32 vectors, for XLA's CPU programs: the K entries of largest magnitude, ties to the lowest index,
// in ascending order of index.
//
// Magnitudes are compared as the 31 bits of |x|, which order as the numbers do: infinities are above all numbers and
// NaNs above infinities. So any input has exactly K winners, and nothing depends on how denormals are rounded.
//
// One pass over the vector takes out a few entries more than K, from a pattern on that a sample suggests. Where the
// vector is short, or these are less than K or far more, the first digits of all entries are counted before. The K-th
// largest pattern is then found among those by radix select, a digit at a time from the top. src/fedsgm/core/topk.py
// has the same in JAX, to the bit.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int kDigits = 3;
constexpr int kShift[kDigits] = {20, 10, 0};  // the sign is none of a digit's bits: the first has 11, the others 10
constexpr uint32_t kBins = 2048;
constexpr uint32_t kMask[kDigits] = {2047, 1023, 1023};
constexpr int64_t kLong = 1 << 16, kSample = 2048;
constexpr int64_t kPart = 1 << 18;  // entries that are worth a thread of their own, at least
constexpr int kMostParts = 16;
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

// Memory that a thread keeps, since the pages of new memory cost as much as a pass over them.
template <typename T>
class Kept {
 public:
  // Null if there is none.
  T* Get(int64_t size) {
    if (size > size_) {
      data_.reset(new (std::nothrow) T[size]);
      size_ = data_ == nullptr ? 0 : size;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
};

// The entries at or above a pattern, in order: where they are, and what they are.
struct Candidates {
  int32_t* places;
  float* entries;
  int64_t size;
};

// Which of 64 entries are at or above a pattern, the first in the lowest bit.
uint64_t AtLeast(const float* x, uint32_t floor) {
  uint8_t flags[64];
  for (int i = 0; i < 64; ++i) flags[i] = Magnitude(x, i) >= floor;  // in vector instructions
  uint64_t word = 0;
  for (int part = 0; part < 64; part += 8) {
    uint64_t eight = 0;
    for (int i = 0; i < 8; ++i) eight |= uint64_t{flags[part + i]} << 8 * i;  // one load, where bytes are in this order
    word |= (eight * 0x0102040810204080u) >> 56 << part;  // a bit of each byte
  }
  return word;
}

// Those from `first` on and before `last`, if there is room for them and 63 more. The processor has to guess once for
// 64 entries, when the last of theirs is through, and not once for each.
bool Collect(const float* x, int64_t first, int64_t last, uint32_t floor, int64_t room, Candidates& found) {
  int64_t n = 0;
  for (int64_t start = first; start < last; start += 64) {
    if (n + 64 > room) return false;
    uint64_t word = 0;
    if (start + 64 <= last)
      word = AtLeast(x + start, floor);
    else
      for (int64_t i = start; i < last; ++i) word |= uint64_t{Magnitude(x, i) >= floor} << (i - start);
    for (; word != 0; word &= word - 1) {
      const int64_t i = start + __builtin_ctzll(word);
      found.places[n] = int32_t(i);
      found.entries[n++] = x[i];
    }
  }
  found.size = n;
  return true;
}

// Any part may have nearly all of them.
int64_t RoomOfPart(int64_t d, int64_t room, int parts) { return std::min(room, d / parts + 128); }

// The same of the whole vector by all threads that are free. There is room for every part.
bool CollectAll(const float* x, int64_t d, uint32_t floor, int64_t room, int parts, ffi::ThreadPool& pool,
                Candidates& found) {
  struct Work {
    std::atomic<int> next{0};
    std::mutex mutex;
    std::condition_variable all_done;
    int done = 0;
    Candidates lists[kMostParts];
    bool fit[kMostParts];
  };
  if (parts < 2) return Collect(x, 0, d, floor, room, found);
  const int64_t length = (d / parts + 63) / 64 * 64, own = RoomOfPart(d, room, parts);
  const auto work = std::make_shared<Work>();  // what starts when all is done finds nothing to do, and no more of us
  for (int part = 0; part < parts; ++part)
    work->lists[part] = {found.places + part * own, found.entries + part * own, 0};
  const auto take = [=] {
    for (int part; (part = work->next++) < parts;) {
      const int64_t first = part * length;
      work->fit[part] = Collect(x, first, std::min(first + length, d), floor, own, work->lists[part]);
      const std::lock_guard<std::mutex> lock(work->mutex);
      if (++work->done == parts) work->all_done.notify_one();
    }
  };
  for (int other = 1; other < parts; ++other) pool.Schedule([take] { take(); });
  take();
  {
    std::unique_lock<std::mutex> lock(work->mutex);
    work->all_done.wait(lock, [&] { return work->done == parts; });
  }
  found.size = 0;
  for (int part = 0; part < parts; ++part) {
    const Candidates& list = work->lists[part];
    if (!work->fit[part]) return false;
    std::memmove(found.places + found.size, list.places, list.size * sizeof *list.places);
    std::memmove(found.entries + found.size, list.entries, list.size * sizeof *list.entries);
    found.size += list.size;
  }
  return true;
}

// What has a few entries more than K above it, if the vector is as a sample of it: three standard errors. `room`
// becomes what they take if they are six, or as many more as a few entries of a sample may stand for.
uint32_t SampledFloor(const float* x, int64_t d, int64_t k, int64_t& room) {
  uint32_t sample[kSample];
  for (int64_t i = 0; i < kSample; ++i) sample[i] = Magnitude(x, i * d / kSample);
  const double share = double(k) / double(d), error = std::sqrt(kSample * share * (1 - share));
  const int64_t rank = std::min(kSample, int64_t(kSample * share + 3 * error) + 1);
  room = int64_t((rank + 3 * error + 8) * double(d) / kSample) + 64;
  std::nth_element(sample, sample + (rank - 1), sample + kSample, std::greater<>());
  return sample[rank - 1];
}

// The pattern that is the `rank`-th largest of those with these first digits; `rank` becomes how many of the entries that
// have it are among so many. `some` has room for all entries.
uint32_t Threshold(const float* x, int64_t d, uint32_t prefix, int64_t& rank, uint32_t* some) {
  int64_t many = 0;
  for (int64_t i = 0; i < d; ++i) {
    some[many] = Magnitude(x, i);
    many += some[many] >> kShift[0] == prefix;
  }
  for (int digit = 1; digit < kDigits; ++digit) {
    uint32_t counts[kBins] = {};
    for (int64_t j = 0; j < many; ++j)
      if (some[j] >> kShift[digit - 1] == prefix) ++counts[some[j] >> kShift[digit] & kMask[digit]];
    prefix = prefix << (kShift[digit - 1] - kShift[digit]) | FindBin(counts, rank);
  }
  return prefix;
}

// 1 <= k <= d. False if there is no memory.
bool Select(const float* x, int64_t d, int64_t k, ffi::ThreadPool& pool, int32_t* indices, float* values) {
  thread_local Kept<int32_t> places;
  thread_local Kept<float> entries;
  thread_local Kept<uint32_t> some;
  Candidates found{};
  const auto has_room = [&](int64_t room) {
    found = {places.Get(room), entries.Get(room), 0};
    return found.places != nullptr && found.entries != nullptr;
  };

  int64_t room, rank = k;
  uint32_t counts[kBins], prefix;
  bool collected = false;
  if (d >= kLong) {
    const uint32_t guess = SampledFloor(x, d, k, room);
    const int parts = int(std::min<int64_t>({pool.num_threads(), kMostParts, d / kPart}));
    if (!has_room(parts < 2 ? room : parts * RoomOfPart(d, room, parts))) return false;
    collected = CollectAll(x, d, guess, room, parts, pool, found) && found.size >= k;
  }
  if (collected) {
    CountFirst(found.entries, found.size, counts);
    prefix = FindBin(counts, rank);
  } else {  // a sample would be no gain, or was not like the rest
    CountFirst(x, d, counts);
    prefix = FindBin(counts, rank);
    room = k - rank + counts[prefix] + 64;
    if (!has_room(room)) return false;
    Collect(x, 0, d, prefix << kShift[0], room, found);
  }
  uint32_t* scratch = some.Get(found.size + 1);
  if (scratch == nullptr) return false;
  const uint32_t least = Threshold(found.entries, found.size, prefix, rank, scratch);

  int64_t n = 0;
  for (int64_t j = 0; j < found.size && n < k; ++j) {
    const uint32_t bits = Magnitude(found.entries, j);
    const bool tie = bits == least && rank > 0;
    rank -= tie;
    indices[n] = found.places[j];
    values[n] = found.entries[j];
    n += bits > least || tie;
  }
  return true;
}

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
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, "fedsgm_topk: no memory");
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedsgm_topk, TopK,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
