//go:build !linux

package harness

import "syscall"

// withParent does nothing on this system: a child outlives a parent that is killed.
func withParent() *syscall.SysProcAttr { return nil }
