// Threads that compute a step together, phase by phase.
//
// A phase is a number of pieces of work, taken from a shared counter by whoever asks; it is over
// when its pieces are done, not when all threads have been there. So a thread that the system
// wakes late, or puts aside between two pieces, holds nobody up: it finds that nothing is left
// and catches up. Pieces are large at first and single in the end, which keeps reads long and
// waits short. What a thread waits for it waits for spinning for some microseconds, since the
// next phase comes sooner than a sleeping thread would wake; after that, and between steps, it
// sleeps. Sleeping matters where the gateway wants a core too: the system then moves a thread
// that it had put aside to the core that fell idle, which it does not do while we spin there.

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
  // One thread's way through a step: which thread it is, and the phase that comes next.
  struct Place {
    int thread;
    uint32_t phase;
  };

  explicit Pool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int threads() const { return threads_; }

  // Run `body(place)` on the caller, thread 0, and on every other thread that comes in time. The
  // body must go through the same phases on each of them, and do no work outside of pieces.
  void run(const std::function<void(Place&)>& body) {
    Place place{0, over_.load(std::memory_order_relaxed)};
    {
      std::lock_guard<std::mutex> hold(mutex_);
      body_ = &body;
      first_phase_ = place.phase;
      generation_++;
    }
    wake_.notify_all();
    body(place);
    {
      std::lock_guard<std::mutex> hold(mutex_);
      body_ = nullptr;
    }
    until(inside_, [](uint32_t inside) { return inside == 0; });
  }

  // Do pieces [0, count) together with the other threads; all are done when this returns.
  // `piece(begin, end)` may be called several times on a thread. What it reads was written in
  // earlier phases; nobody writes it while this phase lasts.
  template <class Piece>
  void phase(Place& place, int count, Piece&& piece) {
    if (count == 0) return;
    const uint32_t phase = place.phase++;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (uint32_t(ticket >> 32) == phase && int(uint32_t(ticket)) < count) {
      const int begin = int(uint32_t(ticket));
      const int many = std::max(1, (count - begin) / (2 * threads_));
      if (!ticket_.compare_exchange_weak(ticket, ticket + many, std::memory_order_acq_rel))
        continue;
      piece(begin, begin + many);
      if (done_.fetch_add(many, std::memory_order_acq_rel) + many == count) return end(phase);
      ticket = ticket_.load(std::memory_order_acquire);
    }
    // phases are counted for ever: the difference tells, also where the count wraps around
    until(over_, [phase](uint32_t over) { return int32_t(over - phase) > 0; });
  }

 private:
  static constexpr int kSpins = 500;  // some 10 microseconds

  void end(uint32_t phase) {
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(uint64_t(phase + 1) << 32, std::memory_order_release);
    over_.store(phase + 1, std::memory_order_release);
    over_.notify_all();
  }

  // Spin, then sleep.
  template <class Holds>
  static void until(const std::atomic<uint32_t>& value, Holds&& holds) {
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
      wake_.wait(hold, [&] { return ending_ || (body_ != nullptr && generation_ != seen); });
      if (ending_) return;
      seen = generation_;
      Place place{index, first_phase_};
      const auto& body = *body_;
      inside_.fetch_add(1, std::memory_order_relaxed);
      hold.unlock();
      body(place);
      if (inside_.fetch_sub(1, std::memory_order_release) == 1) inside_.notify_all();
      hold.lock();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  unsigned generation_ = 0;
  bool ending_ = false;
  const std::function<void(Place&)>* body_ = nullptr;
  uint32_t first_phase_ = 0;
  alignas(64) std::atomic<uint64_t> ticket_{0};  // phase, and the piece that is next
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<uint32_t> over_{0};    // phases that are over
  alignas(64) std::atomic<uint32_t> inside_{0};  // workers in the body
};

}  // namespace ps
