#pragma once

/// Forward declarations of core's public types.
namespace troupe::core {

struct error;
template <class T>
class result;

class hyperparameters;
struct metadata;
class checkpoint;
class random_stream;

} // namespace troupe::core
