package s3

import (
	"errors"
	"fmt"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// errNobody says that no place has credentials.
var errNobody = errors.New("no credentials were found in the environment, in their file, or of the machine's role")

// found are the credentials of the first place that has some. Where none has, requests are not made: unsigned ones would be
// refused for another reason than is the case.
type found struct {
	all []credentials.Provider
	by  credentials.Provider // whose the last ones were; nil: nobody's
}

// Retrieve implements credentials.Provider.
func (f *found) Retrieve() (credentials.Value, error) { return f.RetrieveWithCredContext(nil) }

// RetrieveWithCredContext implements credentials.Provider.
func (f *found) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	f.by = nil
	why := []error{errNobody}
	for _, p := range f.all {
		v, err := p.RetrieveWithCredContext(cc)
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			f.by = p
			return v, nil
		}
		if err != nil {
			why = append(why, err)
		}
	}
	return credentials.Value{}, fmt.Errorf("find credentials: %w", errors.Join(why...))
}

// IsExpired implements credentials.Provider.
func (f *found) IsExpired() bool { return f.by == nil || f.by.IsExpired() }
