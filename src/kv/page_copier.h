// Copies between the host's memory and the memory that pages lie in, where that is another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace kvcake {

// Both start to copy and must not block for long; `done` is called exactly once, on a thread of the
// copier, when the bytes are there. Neither range is touched by anybody else until then. Called
// from any thread.
class PageCopier {
 public:
  virtual ~PageCopier() = default;

  virtual void ToPage(std::span<std::byte> page, std::span<const std::byte> staging,
                      std::function<void()> done) = 0;
  virtual void FromPage(std::span<std::byte> staging, std::span<const std::byte> page,
                        std::function<void()> done) = 0;
  // Every FromPage after it copies what the operations that the device has been given by now leave
  // in the page; `reached` is called when they have been done. For the thread that gives them.
  virtual void AfterOperations(std::function<void()> reached) = 0;
};

// Starts `count` copies, each told by its number and ending with a call of `done`; blocks until all
// have been done.
void AwaitCopies(int64_t count,
                 const std::function<void(int64_t copy, std::function<void()> done)>& start);
// FromPage that blocks until the bytes are there.
void CopyFromPage(PageCopier& copier, std::span<std::byte> staging,
                  std::span<const std::byte> page);

}  // namespace kvcake
