package image

// Names returns the names of all templates, sorted, whole or not: Get says
// which.
func (s *Store) Names() ([]string, error) { return s.names() }
