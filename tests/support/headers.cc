// The program that compiles what tests include most (cmake/precompiled.cmake). It has no tests.
