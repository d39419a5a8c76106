// Doubles as text that gives the same double when it is read again, in as few characters as can be.
#ifndef LEAFPACK_TENSORDICT_DOUBLE_TEXT_H_
#define LEAFPACK_TENSORDICT_DOUBLE_TEXT_H_

#include <string>

namespace leafpack {

// What std::to_chars writes, which standard libraries older than that of gcc 11 do not have: "0.1", "1e+22",
// "-0", "inf", "nan" whatever its sign. Does not depend on the locale.
std::string ShortestText(double value);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_DOUBLE_TEXT_H_
