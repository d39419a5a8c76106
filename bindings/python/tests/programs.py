"""What the ranks of the tests do that start their own processes: one function each, run by spawn.py."""

import faulthandler
import sys

import exit_programs
import fault_programs
import flight_programs
import group_programs
import torch_shm_programs

MODULES = (exit_programs, fault_programs, flight_programs, group_programs, torch_shm_programs)

if __name__ == "__main__":
    faulthandler.enable()
    (program,) = [vars(module)[sys.argv[1]] for module in MODULES if sys.argv[1] in vars(module)]
    program(*sys.argv[2:])
