#include "base/authority_testing.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>

#include "base/check.h"

namespace kvcake::testing_util {
namespace {

EVP_PKEY* NewKey() {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  CHECK(key != nullptr);
  return key;
}

// Signed by itself where there is no issuer.
X509* NewCertificate(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key,
                     const Authority::Validity& validity = {}) {
  static std::atomic<int> serial = 1;
  X509* made = X509_new();
  CHECK(made != nullptr);
  X509_set_version(made, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(made), serial++);
  X509_gmtime_adj(X509_getm_notBefore(made), validity.from_s);
  X509_gmtime_adj(X509_getm_notAfter(made), validity.until_s);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509* const by = issuer == nullptr ? made : issuer;
  X509_set_issuer_name(made, X509_get_subject_name(by));
  X509_set_pubkey(made, key);
  X509V3_CTX context;
  X509V3_set_ctx(&context, by, made, nullptr, nullptr, 0);
  X509_EXTENSION* extension =
      X509V3_EXT_conf_nid(nullptr, &context, NID_basic_constraints,
                          issuer == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
  CHECK(extension != nullptr && X509_add_ext(made, extension, -1) == 1);
  X509_EXTENSION_free(extension);
  // Addresses are looked for nowhere else.
  if (ASN1_OCTET_STRING* address = a2i_IPADDRESS(name.c_str()); address != nullptr) {
    ASN1_OCTET_STRING_free(address);
    X509_EXTENSION* alternative =
        X509V3_EXT_conf_nid(nullptr, &context, NID_subject_alt_name, ("IP:" + name).c_str());
    CHECK(alternative != nullptr && X509_add_ext(made, alternative, -1) == 1);
    X509_EXTENSION_free(alternative);
  }
  CHECK(X509_sign(made, issuer == nullptr ? key : issuer_key, EVP_sha256()) > 0);
  return made;
}

template <typename Write>
std::string WriteFile(const std::string& path, Write write) {
  FILE* file = std::fopen(path.c_str(), "w");
  CHECK(file != nullptr && write(file) == 1 && std::fclose(file) == 0);
  CHECK(chmod(path.c_str(), 0600) == 0);
  return path;
}

std::string WriteCertificate(const std::string& path, X509* certificate) {
  return WriteFile(path, [&](FILE* file) { return PEM_write_X509(file, certificate); });
}

}  // namespace

Authority::Authority()
    : key_(NewKey()), certificate_(NewCertificate("authority", key_, nullptr, nullptr)) {
  WriteCertificate(dir_.path() + "/ca.pem", certificate_);
}

Authority::~Authority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

Authority::Files Authority::Issue(const std::string& name, const Validity& validity) const {
  EVP_PKEY* key = NewKey();
  X509* certificate = NewCertificate(name, key, certificate_, key_, validity);
  Files files = {.certificate = WriteCertificate(dir_.path() + "/" + name + ".pem", certificate),
                 .key = WriteFile(dir_.path() + "/" + name + ".key",
                                  [&](FILE* file) {
                                    return PEM_write_PrivateKey(file, key, nullptr, nullptr, 0,
                                                                nullptr, nullptr);
                                  }),
                 .ca = dir_.path() + "/ca.pem"};
  X509_free(certificate);
  EVP_PKEY_free(key);
  return files;
}

}  // namespace kvcake::testing_util
