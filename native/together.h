// Work that is shared out among threads.

#ifndef FEDSGM_NATIVE_TOGETHER_H_
#define FEDSGM_NATIVE_TOGETHER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace fedsgm {

constexpr int64_t kWorthIt = 1 << 16;  // entries of a part, at least

// `work(0)` to `work(parts - 1)`, by all threads that are free.
inline void Together(int parts, xla::ffi::ThreadPool& pool, const std::function<void(int)>& work) {
  struct State {
    std::atomic<int> next{0};
    std::mutex mutex;
    std::condition_variable all_done;
    int done = 0;
  };
  if (parts == 1) return work(0);
  const auto state = std::make_shared<State>();  // what starts when all is done finds nothing to do, and no more of us
  const auto take = [parts, state, &work] {
    for (int part; (part = state->next++) < parts;) {
      work(part);
      const std::lock_guard<std::mutex> lock(state->mutex);
      if (++state->done == parts) state->all_done.notify_one();
    }
  };
  for (int64_t other = 1; other < std::min<int64_t>(pool.num_threads(), parts); ++other) pool.Schedule([take] { take(); });
  take();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(lock, [&] { return state->done == parts; });
}

}  // namespace fedsgm

#endif  // FEDSGM_NATIVE_TOGETHER_H_
