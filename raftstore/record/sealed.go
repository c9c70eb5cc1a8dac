package record

// SealedValue is a field that was sealed before it entered the log (package seal), and
// the context that binds it to its row.
type SealedValue struct {
	Value   *[]byte
	Context []byte
}

// Sealed is a row with sealed values.
type Sealed interface {
	// SealedValues are those that the row has now. They are the row's own fields: a
	// value that is set changes the row.
	SealedValues() []SealedValue
}

// The contexts of sealed values. They are part of what is stored: another context does
// not open it.

// EnvContext is that of a part of an environment; in rows of earlier versions, that of the
// environment of a sandbox or a snapshot.
func EnvContext(id string) []byte { return []byte("sandbox.env/" + id) }

// BuildContext is that of the specification of a template's build.
func BuildContext(buildID string) []byte { return []byte("template.build/" + buildID) }

// PasswordContext is that of a database's password.
func PasswordContext(databaseID string) []byte { return []byte("database.password/" + databaseID) }

// BrokerTokenContext is that of the token of a database's broker.
func BrokerTokenContext(databaseID string) []byte {
	return []byte("database.broker_token/" + databaseID)
}

// ArchiveContext is that of the key of a database's archive.
func ArchiveContext(name string) []byte { return []byte("database.archive/" + name) }

// AppVariableContext is that of a variable of an app.
func AppVariableContext(appID, key string) []byte { return []byte("app.env/" + appID + "/" + key) }

// RepoVariableContext is that of a variable of a repository's previews.
func RepoVariableContext(envID, key string) []byte { return []byte("repo.env/" + envID + "/" + key) }

// WebhookContext is that of the secret of a webhook endpoint.
func WebhookContext(endpointID string) []byte { return []byte("webhook.secret/" + endpointID) }

// CertFileContext is that of a file of certificates.
func CertFileContext(id string) []byte { return []byte("cert_file:" + id) }

// SealedValues implements Sealed.
func (s *Sandbox) SealedValues() []SealedValue { return sealed(&s.EnvSealed, EnvContext(s.ID)) }

// SealedValues implements Sealed.
func (s *Snapshot) SealedValues() []SealedValue { return sealed(&s.EnvSealed, EnvContext(s.ID)) }

// SealedValues implements Sealed.
func (e *EnvPart) SealedValues() []SealedValue { return sealed(&e.Sealed, EnvContext(e.ID)) }

// SealedValues implements Sealed.
func (b *Build) SealedValues() []SealedValue {
	return sealed(&b.SpecSealed, BuildContext(b.ID))
}

// SealedValues implements Sealed.
func (d *Database) SealedValues() (out []SealedValue) {
	if c := d.Credentials; c != nil {
		out = append(out, sealed(&c.PasswordSealed, PasswordContext(d.ID))...)
		out = append(out, sealed(&c.BrokerTokenSealed, BrokerTokenContext(d.ID))...)
	}
	for i := range d.Archives {
		out = append(out, sealed(&d.Archives[i].KeySealed, ArchiveContext(d.Archives[i].Name))...)
	}
	return out
}

// SealedValues implements Sealed.
func (a *App) SealedValues() (out []SealedValue) {
	for i := range a.Env {
		out = append(out, sealed(&a.Env[i].ValueSealed, AppVariableContext(a.ID, a.Env[i].Key))...)
	}
	return out
}

// SealedValues implements Sealed.
func (e *RepoEnv) SealedValues() (out []SealedValue) {
	for i := range e.Variables {
		out = append(out, sealed(&e.Variables[i].ValueSealed, RepoVariableContext(e.ID, e.Variables[i].Key))...)
	}
	return out
}

// SealedValues implements Sealed.
func (e *WebhookEndpoint) SealedValues() []SealedValue {
	return sealed(&e.SecretSealed, WebhookContext(e.ID))
}

// SealedValues implements Sealed.
func (f *CertFile) SealedValues() []SealedValue { return sealed(&f.ValueSealed, CertFileContext(f.ID)) }

// sealed is one value, if there is one.
func sealed(value *[]byte, context []byte) []SealedValue {
	if len(*value) == 0 {
		return nil
	}
	return []SealedValue{{value, context}}
}
