from django.http import HttpResponse
from django.urls import path

from visits.models import Visit


def home(request):
    Visit.objects.create()
    return HttpResponse(f"hello from django, visit {Visit.objects.count()}")


urlpatterns = [path("", home)]
