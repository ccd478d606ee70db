// A server for tests that speaks as much of S3's protocol as kvcake does, over real sockets, and
// fails where it is told to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "store/s3_client.h"

namespace kvcake {

// One request, as it came.
struct S3Seen {
  std::string method;
  std::string target;                          // of its first line
  std::string name;                            // of the object; empty: the bucket
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// What happens to a request instead of, or beside, what it asked for.
struct S3Fault {
  int status = 0;         // 0: as without a fault
  std::string code = {};  // in the body of an error, with so much text
  size_t code_text_bytes = 0;
  std::string body = {};                            // instead of such a one
  std::map<std::string, std::string> headers = {};  // more of the reply
  std::optional<size_t> cut_after = {};   // bytes of the reply's body: the connection closes
  std::optional<size_t> hang_after = {};  // bytes of the reply's body: nothing comes any more
  bool hangs = false;                     // nothing comes at all
  bool closes = false;                    // the connection closes at once
};

// A bucket, "bucket", in memory, on a port of its own. Signatures are checked; a clock that is 15
// minutes off is refused.
class S3Server {
 public:
  S3Server();
  ~S3Server();
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  static S3Credentials Credentials() { return {"AKIDOFTESTS", "a secret/of+tests"}; }
  uint16_t port() const { return port_; }
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
  S3Place Place() const;

  // Asked for each request before it is answered.
  void SetFault(std::function<S3Fault(const S3Seen&)> fault);
  void SetClockAhead(int64_t seconds);
  void SetCredentials(S3Credentials credentials);
  std::vector<S3Seen> Requests() const;
  // What an object holds; nothing where there is none.
  std::optional<std::string> Object(const std::string& name) const;
  void SetObject(const std::string& name, std::string bytes);
  std::vector<std::string> Names() const;
  // Ends all connections that are open, and those that hang.
  void CutConnections();

 private:
  struct Kept {
    std::string bytes;
    int64_t modified_s = 0;
  };
  struct Reply {
    int status = 200;
    std::map<std::string, std::string> headers = {};
    std::string body = {};
    S3Fault fault = {};
  };

  void Listen();
  void Serve(int socket);
  Reply Answer(const S3Seen& seen) EXCLUDES(mutex_);
  Reply AnswerObject(const S3Seen& seen) REQUIRES(mutex_);
  Reply List(const S3Seen& seen) REQUIRES(mutex_);
  // Nothing, or why the request is refused.
  std::optional<Reply> Refuse(const S3Seen& seen) REQUIRES(mutex_);
  int64_t Now() const REQUIRES(mutex_);

  int listener_ = -1;
  uint16_t port_ = 0;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::set<int> sockets_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
  std::function<S3Fault(const S3Seen&)> fault_ GUARDED_BY(mutex_);
  int64_t ahead_s_ GUARDED_BY(mutex_) = 0;
  S3Credentials credentials_ GUARDED_BY(mutex_) = Credentials();
  std::map<std::string, Kept> objects_ GUARDED_BY(mutex_);
  std::vector<S3Seen> seen_ GUARDED_BY(mutex_);
  std::thread listening_;
};

// Sets variables of the environment, and puts them back in the end; null: not set.
class ScopedEnvironment {
 public:
  explicit ScopedEnvironment(std::initializer_list<std::pair<const char*, const char*>> variables);
  ~ScopedEnvironment();
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

}  // namespace kvcake
