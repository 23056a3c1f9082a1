#pragma once

#include <cstdlib>
#include <string>

/// A variable of the environment, as long as the object lives.
struct variable {
  std::string name, before;
  bool was_set;
  variable(const char* n, const char* value) : name(n), was_set(std::getenv(n) != nullptr) {
    if (was_set)
      before = std::getenv(n);
    ::setenv(n, value, 1);
  }
  ~variable() {
    if (was_set)
      ::setenv(name.c_str(), before.c_str(), 1);
    else
      ::unsetenv(name.c_str());
  }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;
};
