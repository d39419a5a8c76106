// Folders and files of a fuzzing program: in memory where there is such a file system, gone when the program ends.
#ifndef LEAFPACK_TESTING_FUZZ_FILES_H_
#define LEAFPACK_TESTING_FUZZ_FILES_H_

#include <string>
#include <string_view>

namespace leafpack::testing {

// Ends the program, which keeps the input, if `holds` is false.
void Require(bool holds);

// The folder of this process, made at the first call. No slash at its end.
const std::string& Folder();

// Removes the file or folder with all that is in it; nothing if there is none. Links are not followed.
void Remove(const std::string& path);

// Makes or replaces the file.
void WriteFile(const std::string& path, std::string_view bytes);

// Makes what `archive` says below `folder`, which must not be there. A line "@NAME" begins a file, whose content ends
// before the newline of the next such line; "@NAME/" a folder; "@NAME>TARGET" a symbolic link; "@NAME|" a pipe.
// Folders on the way are made. What cannot be made is left out, a name that leads out of the folder too; so is all
// behind the first 32 things.
void Unpack(std::string_view archive, const std::string& folder);

}  // namespace leafpack::testing

#endif  // LEAFPACK_TESTING_FUZZ_FILES_H_
