// Threads that run one function together, with barriers inside it.
//
// Between the phases of a step threads spin for some microseconds, since the next phase comes
// sooner than a sleeping thread would wake; after that, and between steps, they sleep. Sleeping
// matters where the gateway wants a core too: the system then moves the thread that it had put
// aside to the core that fell idle, which it does not do while we spin there. Work inside a phase
// is taken in small pieces from a shared counter, so that a thread put aside delays one piece.

#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define PS_PAUSE() _mm_pause()
#else
#define PS_PAUSE() std::this_thread::yield()
#endif

namespace ps {

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      ending_ = true;
      generation_++;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int threads() const { return threads_; }

  // Run `body(thread)` on every thread, the caller's being thread 0; returns when all are done.
  void run(const std::function<void(int)>& body) {
    body_ = &body;
    next_.store(0, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> hold(mutex_);
      generation_++;
    }
    wake_.notify_all();
    body(0);
    barrier();
  }

  // All threads come here before any goes on; the counter of `take` starts again at 0.
  void barrier() {
    if (threads_ == 1) {
      next_.store(0, std::memory_order_relaxed);
      return;
    }
    unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      phase_.notify_all();
      return;
    }
    for (int spins = 0; spins < kSpins; spins++) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
      PS_PAUSE();
    }
    phase_.wait(phase, std::memory_order_acquire);
  }

  // The next piece of this phase's work, for whoever asks first.
  int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr int kSpins = 500;  // some 10 microseconds

  void work(int index) {
    unsigned seen = 0;
    for (;;) {
      {
        std::unique_lock<std::mutex> hold(mutex_);
        wake_.wait(hold, [&] { return generation_ != seen; });
        seen = generation_;
        if (ending_) return;
      }
      (*body_)(index);
      barrier();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  unsigned generation_ = 0;
  bool ending_ = false;
  const std::function<void(int)>* body_ = nullptr;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

}  // namespace ps
