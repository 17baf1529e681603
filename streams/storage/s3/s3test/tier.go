package s3test

import (
	"net/http"
	"time"
)

// A tier is where an object lies.
type tier struct {
	class         string    // GLACIER, ...; empty: where it can be read
	restoring     bool      // its return
	restoredUntil time.Time // it is back until then
}

var invalidState = &failure{403, "InvalidObjectState"}

// away says that it cannot be read now.
func (t tier) archived() bool { return t.class != "" && t.restoredUntil.IsZero() }

// tell answers what HEAD and GET say of it.
func (t tier) writeHeaders(w http.ResponseWriter) {
	if t.class == "" {
		return
	}
	w.Header().Set("X-Amz-Storage-Class", t.class)
	switch {
	case !t.restoredUntil.IsZero():
		w.Header().Set("X-Amz-Restore", `ongoing-request="false", expiry-date="`+t.restoredUntil.UTC().Format(http.TimeFormat)+`"`)
	case t.restoring:
		w.Header().Set("X-Amz-Restore", `ongoing-request="true"`)
	}
}

// Archive moves an object to an archive tier.
func (s *Server) Archive(bucket, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buckets[bucket].current(key).tier = tier{class: "GLACIER"}
}

// Return ends the waiting for an object whose return was asked for; false: it was not.
func (s *Server) CompleteRestore(bucket, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.buckets[bucket].current(key)
	if !o.tier.restoring {
		return false
	}
	o.tier.restoredUntil = s.now().Add(7 * 24 * time.Hour)
	return true
}

// restore answers RestoreObject.
func (s *Server) restore(w http.ResponseWriter, bk *bucket, key string) *failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := bk.current(key)
	switch {
	case o == nil:
		return noKey
	case o.tier.class == "":
		return invalidState
	case !o.tier.restoredUntil.IsZero():
		return nil
	case o.tier.restoring:
		return &failure{409, "RestoreAlreadyInProgress"}
	}
	o.tier.restoring = true
	w.WriteHeader(http.StatusAccepted)
	return nil
}
