
 47dc22e01999939fcc48e92ec97d1f54acme2"photos*2020/film.mov2content-missing8BÖšàÏÀÁÀJÖšàÏÀÁÀ €€€€€ 