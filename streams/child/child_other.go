//go:build !linux

package child

import "syscall"

// attributes cannot bind the child to its parent on this system: the child survives a killed
// parent.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
