// What XLA's CPU programs do slowly with long vectors: putting them together from arrays, and adding a few entries.
//
// XLA puts arrays together in a loop over all entries, in which the loads of the array that an entry is not from are
// masked out. Where these loads go past the array's end into memory that is not there, each costs a hundred times as much.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "together.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using fedsgm::kWorthIt;
using fedsgm::Together;

namespace {

// Arrays one after another.
ffi::Error Join(ffi::ThreadPool pool, ffi::RemainingArgs arrays, ffi::ResultBuffer<ffi::F32> joined) {
  struct Piece {
    const float* from;
    float* to;
    int64_t size;
  };
  std::vector<Piece> pieces;
  float *to = joined->typed_data(), *const end = to + joined->element_count();
  for (size_t a = 0; a < arrays.size(); ++a) {
    const auto array = arrays.get<ffi::Buffer<ffi::F32>>(a);
    if (!array.has_value() || int64_t(array->element_count()) > end - to)
      return ffi::Error::InvalidArgument("fedsgm_join: wrong shapes");
    const int64_t size = array->element_count();
    for (int64_t i = 0; i < size; i += kWorthIt)
      pieces.push_back({array->typed_data() + i, to + i, std::min(kWorthIt, size - i)});
    to += size;
  }
  if (to != end) return ffi::Error::InvalidArgument("fedsgm_join: wrong shapes");
  Together(int(pieces.size()), pool, [&](int p) { std::copy_n(pieces[p].from, pieces[p].size, pieces[p].to); });
  return ffi::Error::Success();
}

// Values, at places that are all different, added to a vector; those beyond its end are not. `sum` may be x itself.
ffi::Error Add(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> places, ffi::Buffer<ffi::F32> values,
               ffi::ResultBuffer<ffi::F32> sum) {
  const int64_t d = x.element_count(), k = places.element_count();
  if (int64_t(values.element_count()) != k || int64_t(sum->element_count()) != d)
    return ffi::Error::InvalidArgument("fedsgm_add: wrong shapes");
  float* to = sum->typed_data();
  if (to != x.typed_data()) std::copy_n(x.typed_data(), d, to);
  const int32_t* where = places.typed_data();
  const float* what = values.typed_data();
  const int64_t most = kWorthIt / 4;
  Together(int((k + most - 1) / most), pool, [=](int part) {
    for (int64_t j = part * most; j < std::min(k, (part + 1) * most); ++j)
      if (where[j] >= 0 && where[j] < d) to[where[j]] += what[j];
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedsgm_join, Join,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(fedsgm_add, Add,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
