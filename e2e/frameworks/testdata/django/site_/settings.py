from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only-for-the-test"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["visits"]
ROOT_URLCONF = "site_.urls"
WSGI_APPLICATION = "site_.wsgi.application"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
