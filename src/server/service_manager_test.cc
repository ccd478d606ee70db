#include "server/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

// The socket that systemd would have.
class Listener {
 public:
  explicit Listener(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
  }
  ~Listener() { ::close(socket_); }
  std::string Next() {
    char text[256];
    const ssize_t got = ::recv(socket_, text, sizeof(text), 0);
    return got < 0 ? "nothing" : std::string(text, got);
  }
  // Forgets what has come.
  void Drain() {
    char text[256];
    while (::recv(socket_, text, sizeof(text), MSG_DONTWAIT) >= 0) {
    }
  }

 private:
  const int socket_;
};

TEST(ServiceManagerTest, SpeaksToAPathAndToAnAbstractName) {
  const TempDir dir;
  const std::string path = dir.path() + "/notify";
  Listener at_path(path);
  const std::string name = "kvcake-test-" + std::to_string(getpid());
  Listener abstract(std::string(1, '\0') + name);
  EXPECT_TRUE(ServiceManager({.socket = path}).Notify("READY=1\nSTATUS=well"));
  EXPECT_EQ(at_path.Next(), "READY=1\nSTATUS=well");
  EXPECT_TRUE(ServiceManager({.socket = "@" + name}).Notify("STOPPING=1"));
  EXPECT_EQ(abstract.Next(), "STOPPING=1");
  EXPECT_TRUE(ServiceManager({}).Notify("READY=1"));
  EXPECT_EQ(ServiceManager({.socket = dir.path() + "/none"}).Notify("READY=1").error().code,
            ErrorCode::kIo);
  EXPECT_EQ(ServiceManager({.socket = std::string(200, '/')}).Notify("READY=1").error().code,
            ErrorCode::kInvalidArgument);
}

TEST(ServiceManagerTest, GivesSignsOfLifeWhileItIsWell) {
  const TempDir dir;
  const std::string path = dir.path() + "/notify";
  Listener listener(path);
  std::atomic<bool> well{true};
  std::atomic<int> asked_when_ill{0};
  ServiceManager manager({.socket = path, .watchdog = Seconds(0.002)});
  manager.Watch([&] {
    if (!well) ++asked_when_ill;
    return well.load();
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(listener.Next(), "WATCHDOG=1");
  well = false;
  const auto ask_thrice = [&] {
    for (const int until = asked_when_ill + 3; asked_when_ill < until;) usleep(1000);
  };
  ask_thrice();
  listener.Drain();  // signs of life from before
  ask_thrice();
  EXPECT_TRUE(manager.Notify("ILL"));
  EXPECT_EQ(listener.Next(), "ILL");
  well = true;
  EXPECT_EQ(listener.Next(), "WATCHDOG=1");
}

TEST(ServiceManagerTest, KnowsWhatIsAskedForByTheEnvironment) {
  setenv("NOTIFY_SOCKET", "@here", 1);
  setenv("WATCHDOG_USEC", "3000000", 1);
  unsetenv("WATCHDOG_PID");
  EXPECT_EQ(ServiceManager::FromEnvironment().socket, "@here");
  EXPECT_EQ(ServiceManager::FromEnvironment().watchdog, Seconds(3));
  setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  EXPECT_EQ(ServiceManager::FromEnvironment().watchdog, Seconds(3));
  setenv("WATCHDOG_PID", "1", 1);  // another process is watched
  EXPECT_EQ(ServiceManager::FromEnvironment().watchdog, std::nullopt);
  unsetenv("WATCHDOG_PID");
  setenv("WATCHDOG_USEC", "soon", 1);
  EXPECT_EQ(ServiceManager::FromEnvironment().watchdog, std::nullopt);
  unsetenv("WATCHDOG_USEC");
  unsetenv("NOTIFY_SOCKET");
  EXPECT_EQ(ServiceManager::FromEnvironment().socket, "");
}

}  // namespace
}  // namespace kvcake
