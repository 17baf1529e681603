package child

import "syscall"

// attributes have the kernel kill the child when its parent is gone.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
