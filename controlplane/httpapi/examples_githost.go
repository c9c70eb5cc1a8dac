package httpapi

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

var (
	exampleGitHubConnect = api.GitHubConnect{
		URL: "https://github.com/apps/berth-example/installations/new?state=AQAAAAHq3rYkz2", ExpiresAt: api.Time{Time: exampleAt.Add(15 * time.Minute)},
	}
	exampleGitHubInstallation = api.GitHubInstallation{
		ID: "48012345", Account: "example-org", AccountType: "Organization", RepositorySelection: "selected", CreatedAt: exampleAt,
	}
	exampleGitHubRepo = api.GitHubRepo{
		ID: "735512345", FullName: "example-org/shop", CloneURL: "https://github.com/example-org/shop.git", Private: true, DefaultBranch: "main",
	}
	exampleRepoVariable = api.RepoVariable{Key: "API_URL", Value: "https://api.staging.example.com", UpdatedAt: exampleAt}
)
