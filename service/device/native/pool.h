// Threads that compute a step together, phase by phase.
//
// A phase is a number of pieces of work, which threads take from a shared counter. It is over when
// its pieces are done, not when every thread has taken part, so a thread that the kernel wakes late
// or preempts between two pieces delays no other: it finds no piece left and goes on to the next
// phase. Threads take many pieces at first and single ones in the end, which keeps reads long and
// waits short. A waiting thread spins for some microseconds, because the next phase comes sooner
// than a sleeping thread would wake; after that, and between steps, it sleeps. Sleeping matters
// where the gateway needs a core too: the kernel then moves a preempted thread to the core that
// became idle, which it does not do while a thread spins there.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
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
  // How far one thread is in a step: the thread's number, and its next phase.
  struct PhaseCursor {
    int thread;
    uint32_t phase;
  };

  explicit Pool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int threads() const { return threads_; }

  // Run `body(cursor)` on the caller, thread 0, and on every other thread that wakes in time.
  // The body must go through the same phases on each of them, and do no work outside of pieces.
  void run(const std::function<void(PhaseCursor&)>& body) {
    PhaseCursor cursor{0, phases_done_.load(std::memory_order_relaxed)};
    {
      std::lock_guard<std::mutex> hold(mutex_);
      body_ = &body;
      first_phase_ = cursor.phase;
      generation_++;
    }
    wake_.notify_all();
    body(cursor);
    {
      std::lock_guard<std::mutex> hold(mutex_);
      body_ = nullptr;
    }
    wait_until(active_workers_, [](uint32_t active) { return active == 0; });
  }

  // Do pieces [0, count) together with the other threads; all are done when this returns.
  // `piece(begin, end)` may be called several times on a thread. It may read only what earlier
  // phases wrote, and no thread writes that while this phase lasts.
  template <class Piece>
  void phase(PhaseCursor& cursor, int count, Piece&& piece) {
    if (count == 0) return;
    const uint32_t phase = cursor.phase++;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (uint32_t(ticket >> 32) == phase && int(uint32_t(ticket)) < count) {
      const int begin = int(uint32_t(ticket));
      const int taken = std::max(1, (count - begin) / (2 * threads_));
      if (!ticket_.compare_exchange_weak(ticket, ticket + taken, std::memory_order_acq_rel))
        continue;
      piece(begin, begin + taken);
      if (done_.fetch_add(taken, std::memory_order_acq_rel) + taken == count) return end(phase);
      ticket = ticket_.load(std::memory_order_acquire);
    }
    // the difference is right also after the count of phases has wrapped around
    wait_until(phases_done_, [phase](uint32_t done) { return int32_t(done - phase) > 0; });
  }

 private:
  static constexpr int kSpins = 500;  // some 10 microseconds

  void end(uint32_t phase) {
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(uint64_t(phase + 1) << 32, std::memory_order_release);
    phases_done_.store(phase + 1, std::memory_order_release);
    phases_done_.notify_all();
  }

  // Spin, then sleep.
  template <class Holds>
  static void wait_until(const std::atomic<uint32_t>& value, Holds&& holds) {
    for (int spins = 0; spins < kSpins; spins++) {
      if (holds(value.load(std::memory_order_acquire))) return;
      PS_PAUSE();
    }
    for (uint32_t now; !holds(now = value.load(std::memory_order_acquire));)
      value.wait(now, std::memory_order_acquire);
  }

  void work(int index) {
    unsigned seen = 0;
    std::unique_lock<std::mutex> hold(mutex_);
    for (;;) {
      wake_.wait(hold, [&] { return stopping_ || (body_ != nullptr && generation_ != seen); });
      if (stopping_) return;
      seen = generation_;
      PhaseCursor cursor{index, first_phase_};
      const auto& body = *body_;
      active_workers_.fetch_add(1, std::memory_order_relaxed);
      hold.unlock();
      body(cursor);
      if (active_workers_.fetch_sub(1, std::memory_order_release) == 1)
        active_workers_.notify_all();
      hold.lock();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  unsigned generation_ = 0;
  bool stopping_ = false;
  const std::function<void(PhaseCursor&)>* body_ = nullptr;
  uint32_t first_phase_ = 0;
  alignas(64) std::atomic<uint64_t> ticket_{0};  // phase (high half) and next piece (low half)
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<uint32_t> phases_done_{0};
  alignas(64) std::atomic<uint32_t> active_workers_{0};  // workers in the body
};

}  // namespace ps
