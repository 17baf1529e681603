package harness

import "syscall"

// withParent has a child process end when this one does, however that ends.
func withParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
