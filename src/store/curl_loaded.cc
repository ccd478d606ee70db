// libcurl's functions, for a libkvcake that is to run where nothing is known but glibc: those of
// the machine's own library, which is looked for when the first is called. Without one
// curl_global_init fails, after which none of the others is called.
#include <curl/curl.h>
#include <dlfcn.h>

#include <cstdarg>
#include <initializer_list>

#undef curl_easy_setopt
#undef curl_multi_setopt

namespace {

void* Symbol(const char* name) {
  static void* const library = [] {
    void* const usual = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    return usual != nullptr ? usual : dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
  }();
  return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace

#define REAL(name) static const auto real = reinterpret_cast<decltype(&name)>(Symbol(#name))

extern "C" {

// An old one may lack some.
CURLcode curl_global_init(long flags) {
  REAL(curl_global_init);
  for (const char* const name :
       {"curl_easy_strerror", "curl_easy_init", "curl_easy_cleanup", "curl_easy_reset",
        "curl_easy_setopt", "curl_multi_init", "curl_multi_cleanup", "curl_multi_setopt",
        "curl_multi_add_handle", "curl_multi_remove_handle", "curl_multi_perform",
        "curl_multi_poll", "curl_multi_wakeup", "curl_multi_info_read", "curl_slist_append",
        "curl_slist_free_all", "curl_getdate"}) {
    if (Symbol(name) == nullptr) return CURLE_FAILED_INIT;
  }
  return real == nullptr ? CURLE_FAILED_INIT : real(flags);
}

const char* curl_easy_strerror(CURLcode code) {
  REAL(curl_easy_strerror);
  return code == CURLE_FAILED_INIT || real == nullptr
             ? "there is no libcurl.so.4 of 7.68 or newer on this machine"
             : real(code);
}

CURL* curl_easy_init() {
  REAL(curl_easy_init);
  return real();
}

void curl_easy_cleanup(CURL* handle) {
  REAL(curl_easy_cleanup);
  real(handle);
}

void curl_easy_reset(CURL* handle) {
  REAL(curl_easy_reset);
  real(handle);
}

// A long, a curl_off_t or a pointer: all are passed alike where kvcake runs.
static_assert(sizeof(long) == sizeof(void*) && sizeof(curl_off_t) == sizeof(void*));

CURLcode curl_easy_setopt(CURL* handle, CURLoption option, ...) {
  REAL(curl_easy_setopt);
  va_list values;
  va_start(values, option);
  void* const value = va_arg(values, void*);
  va_end(values);
  return real(handle, option, value);
}

CURLM* curl_multi_init() {
  REAL(curl_multi_init);
  return real();
}

CURLMcode curl_multi_cleanup(CURLM* multi) {
  REAL(curl_multi_cleanup);
  return real(multi);
}

CURLMcode curl_multi_setopt(CURLM* multi, CURLMoption option, ...) {
  REAL(curl_multi_setopt);
  va_list values;
  va_start(values, option);
  void* const value = va_arg(values, void*);
  va_end(values);
  return real(multi, option, value);
}

CURLMcode curl_multi_add_handle(CURLM* multi, CURL* handle) {
  REAL(curl_multi_add_handle);
  return real(multi, handle);
}

CURLMcode curl_multi_remove_handle(CURLM* multi, CURL* handle) {
  REAL(curl_multi_remove_handle);
  return real(multi, handle);
}

CURLMcode curl_multi_perform(CURLM* multi, int* running) {
  REAL(curl_multi_perform);
  return real(multi, running);
}

CURLMcode curl_multi_poll(CURLM* multi, curl_waitfd fds[], unsigned int count, int timeout_ms,
                          int* ready) {
  REAL(curl_multi_poll);
  return real(multi, fds, count, timeout_ms, ready);
}

CURLMcode curl_multi_wakeup(CURLM* multi) {
  REAL(curl_multi_wakeup);
  return real(multi);
}

CURLMsg* curl_multi_info_read(CURLM* multi, int* left) {
  REAL(curl_multi_info_read);
  return real(multi, left);
}

curl_slist* curl_slist_append(curl_slist* list, const char* text) {
  REAL(curl_slist_append);
  return real(list, text);
}

void curl_slist_free_all(curl_slist* list) {
  REAL(curl_slist_free_all);
  real(list);
}

time_t curl_getdate(const char* text, const time_t* unused) {
  REAL(curl_getdate);
  return real(text, unused);
}

}  // extern "C"
